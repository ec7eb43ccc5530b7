#include "weights/mtp_side_car.h"

#include <algorithm>
#include <array>

#include "weights/file_error.h"
#include "weights/json_strict.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::array<const char*, 4> kPlaces{"optiq/mtp.safetensors", "mtp.safetensors", "mtp/weights.safetensors",
                                             "model-mtp.safetensors"};
constexpr const char* kFileKey = "mlx_lm_extra_tensors.mtp_file";

// The file that mlx_lm_extra_tensors.mtp_file names, empty: none.
fs::path file_of_config(const SafetensorsModel& trunk) {
  const std::string origin = (trunk.path() / "config.json").string();
  const ConfigReader config(trunk.config(), origin);
  if (!config.has("mlx_lm_extra_tensors")) return {};
  const ConfigReader extra = config.object("mlx_lm_extra_tensors");
  if (!extra.has("mtp_file")) return {};
  const fs::path file = extra.text("mtp_file");
  if (file.empty() || file.is_absolute() || std::find(file.begin(), file.end(), "..") != file.end())
    throw extra.refuse("mtp_file", "a path inside the model's directory, without ..");
  std::error_code failed;
  if (!fs::exists(trunk.path() / file, failed))
    throw file_error(origin, fmt::format("{} names {}, which does not exist", kFileKey, in_quotes(file.string())),
                     "download it, or remove the key to run without the MTP head");
  return trunk.path() / file;
}

// Whether the names in the files carry "mtp."; both kinds at once: Error.
bool names_are_prefixed(const Checkpoint& checkpoint, const std::string& place) {
  const CheckpointTensor *plain = nullptr, *prefixed = nullptr;
  for (const auto& [name, tensor] : checkpoint.tensors())
    (canonical_name(tensor.tensor->name).starts_with("mtp.") ? prefixed : plain) = &tensor;
  if (plain != nullptr && prefixed != nullptr)
    throw file_error(place,
                     fmt::format("names tensors with and without the prefix mtp. ({} and {})",
                                 in_quotes(prefixed->tensor->name), in_quotes(plain->tensor->name)),
                     "take the head that belongs to this model, or convert it anew");
  return prefixed != nullptr;
}

void check_same(const ConfigReader& own, const ConfigReader& trunk, std::string_view key, const std::string& place) {
  if (!own.has(key)) return;
  const std::int64_t here = own.dimension(key), there = trunk.dimension(key);
  if (here != there)
    throw file_error(place, fmt::format("{} is {}, the model's is {}", key, here, there),
                     "take the head that belongs to this model");
}

// The config.json of a side-car, null: it has none of its own.
json config_of_side_car(const SafetensorsModel& trunk, const fs::path& directory) {
  std::error_code failed;
  if (fs::equivalent(directory, trunk.path(), failed) || !fs::exists(directory / "config.json", failed)) return nullptr;
  json config = read_json_file(directory / "config.json");
  if (!config.is_object()) throw file_error((directory / "config.json").string(), "is not a JSON object");
  return config;
}

MtpSideCar open_files(const SafetensorsModel& trunk, const fs::path& directory, const std::vector<std::string>& files,
                      std::string place) {
  MtpSideCar found;
  found.place = std::move(place);
  const std::string origin = (directory / "config.json").string();
  found.evidence.config = config_of_side_car(trunk, directory);
  found.evidence.config_file = origin;
  const json& own = found.evidence.config;
  const bool says_how = own.is_object() && (own.contains("quantization") || own.contains("quantization_config"));
  const std::string trunk_config = (trunk.path() / "config.json").string();
  found.model =
      open_side_car(directory, files, says_how ? own : trunk.config(), says_how ? origin : trunk_config, "mtp.");
  found.evidence.metadata = found.model->checkpoint().metadata();
  const bool prefixed = names_are_prefixed(found.model->checkpoint(), found.place);
  found.evidence.place = MtpPlace::file;
  if (!own.is_object() || own.value("model_type", json()) != "qwen3_5_mtp") return found;
  found.evidence.place = prefixed ? MtpPlace::folder_prefixed_keys : MtpPlace::folder_plain_keys;
  for (const char* key : {"hidden_size", "vocab_size"})
    check_same(ConfigReader(own, origin), ConfigReader(trunk.config(), trunk_config), key, origin);
  return found;
}

MtpSideCar open_file(const SafetensorsModel& trunk, const fs::path& file) {
  const fs::path directory = file.has_parent_path() ? file.parent_path() : fs::path(".");
  return open_files(trunk, directory, {file.filename().string()}, file.string());
}

}  // namespace

MtpSideCar find_mtp_side_car(const SafetensorsModel& trunk, const SourceOptions& options) {
  std::error_code failed;
  if (!options.mtp_path.empty()) {
    if (fs::is_directory(options.mtp_path, failed))
      return open_files(trunk, options.mtp_path, weight_files(options.mtp_path), options.mtp_path.string());
    if (!fs::exists(options.mtp_path, failed))
      throw Error(ErrorKind::data, fmt::format("--mtp names {}, which does not exist", options.mtp_path.string()),
                  "give a directory or a .safetensors file that holds the head, or auto, on, off");
    return open_file(trunk, options.mtp_path);
  }
  if (const fs::path file = file_of_config(trunk); !file.empty()) return open_file(trunk, file);
  MtpSideCar none;
  none.looked = "mtp.* among the trunk's tensors";
  for (const char* place : kPlaces) {
    const fs::path file = trunk.path() / place;
    if (fs::exists(file, failed)) return open_file(trunk, file);
    none.looked += fmt::format(", {}", place);
  }
  return none;
}

}  // namespace outrider
