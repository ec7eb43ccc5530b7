#include "weights/checkpoint.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/log.h"
#include "weights/file_error.h"
#include "weights/json_strict.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndex = "model.safetensors.index.json";

// models.md 1.12: the first match wins; an empty canonical prefix with `dropped` means the tensor is not read.
struct Prefix {
  std::string_view source;
  std::string_view canonical;
  bool dropped = false;
};
constexpr std::array<Prefix, 12> kPrefixes{{{"model.language_model.visual.", "", true},
                                            {"model.visual.", "", true},
                                            {"visual.", "", true},
                                            {"vision_tower.", "", true},
                                            {"model.language_model.", "model."},
                                            {"language_model.model.", "model."},
                                            {"language_model.lm_head.", "lm_head."},
                                            {"language_model.mtp.", "mtp."},
                                            {"model.mtp.", "mtp."},
                                            {"model.", "model."},
                                            {"lm_head.", "lm_head."},
                                            {"mtp.", "mtp."}}};

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos &&
         name.find("..") == std::string_view::npos;
}

// tensor -> file of an index, checked.
std::map<std::string, std::string> read_index(const fs::path& path) {
  // An index of a large model has hundreds of thousands of entries, hence the larger limit.
  const nlohmann::json index = parse_json(read_text_file(path, 256u << 20), path.string(), 8);
  const std::string origin = path.string();
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    throw file_error(origin, "needs an object weight_map");
  std::map<std::string, std::string> map;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string()) throw tensor_error(origin, tensor, "weight_map gives no file name");
    const auto name = file.get<std::string>();
    if (!is_plain_name(name))
      throw tensor_error(origin, tensor,
                         fmt::format("file {} is not a plain name (no '/', '\\', '..')", in_quotes(name)));
    map[tensor] = name;
  }
  return map;
}

std::string first_few(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string out;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) out += (i == 0 ? "" : ", ") + in_quotes(names[i]);
  if (names.size() > kShown) out += fmt::format(" and {} more", names.size() - kShown);
  return out;
}

}  // namespace

std::string canonical_name(std::string_view tensor) {
  for (const Prefix& prefix : kPrefixes)
    if (tensor.starts_with(prefix.source))
      return prefix.dropped ? std::string() : std::string(prefix.canonical).append(tensor.substr(prefix.source.size()));
  return std::string(tensor);
}

std::string canonical_module(std::string_view path) {
  std::string name = canonical_name(std::string(path) + ".");
  if (!name.empty()) name.pop_back();
  return name.empty() ? std::string(path) : name;
}

std::vector<std::string> weight_files(const fs::path& directory) {
  std::set<std::string> names;
  std::error_code failed;
  if (fs::exists(directory / kIndex, failed)) {
    for (const auto& [tensor, file] : read_index(directory / kIndex)) names.insert(file);
    std::vector<std::string> missing;
    for (const std::string& name : names)
      if (!fs::exists(directory / name, failed)) missing.push_back(name);
    if (!missing.empty())
      throw file_error((directory / kIndex).string(),
                       fmt::format("names files that do not exist: {}", first_few(missing)),
                       "download the missing shards");
  } else if (fs::exists(directory / "model.safetensors", failed)) {
    names.insert("model.safetensors");
  } else {
    for (const auto& entry : fs::directory_iterator(directory, failed)) {
      const std::string name = entry.path().filename().string();
      // model-mtp.safetensors is a side-car (models.md 4.3).
      if (name.starts_with("model") && name.ends_with(".safetensors") && name != "model-mtp.safetensors")
        names.insert(name);
    }
  }
  if (names.empty())
    throw file_error(directory.string(),
                     "no weights found (looked for model.safetensors, model*.safetensors and an index)",
                     "put the weights beside config.json, or give another directory");
  return {names.begin(), names.end()};
}

Checkpoint::Checkpoint(const fs::path& directory) {
  const std::map<std::string, std::string> origin_of = open(directory, weight_files(directory), "");
  std::error_code failed;
  if (!fs::exists(directory / kIndex, failed)) return;
  std::vector<std::string> missing;
  for (const auto& [tensor, file] : read_index(directory / kIndex)) {
    const auto it = origin_of.find(tensor);
    if (it == origin_of.end() || it->second != file) missing.push_back(tensor);
  }
  if (!missing.empty())
    throw file_error((directory / kIndex).string(),
                     fmt::format("{} tensors are not in the file it names: {}", missing.size(), first_few(missing)));
}

Checkpoint::Checkpoint(const fs::path& directory, const std::vector<std::string>& files, std::string_view prefix) {
  open(directory, files, prefix);
}

std::map<std::string, std::string> Checkpoint::open(const fs::path& directory, const std::vector<std::string>& files,
                                                    std::string_view prefix) {
  std::map<std::string, std::string> origin_of;
  const std::string place = (files.size() == 1 ? directory / files.front() : directory).string();
  for (const std::string& name : files) {
    files_.push_back(std::make_unique<SafetensorsFile>(directory / name));
    const SafetensorsFile& file = *files_.back();
    metadata_.insert(file.header().metadata.begin(), file.header().metadata.end());
    for (const StoredTensor& tensor : file.header().tensors) {
      const auto [known, is_new] = origin_of.emplace(tensor.name, name);
      if (!is_new)
        throw tensor_error(place, tensor.name,
                           fmt::format("is in two files, {} and {}", in_quotes(known->second), in_quotes(name)));
      std::string canonical = canonical_name(tensor.name);
      if (canonical.empty()) {
        ++dropped_;
        continue;
      }
      if (!canonical.starts_with(prefix)) canonical.insert(0, prefix);
      const auto [other, unique] = tensors_.emplace(canonical, CheckpointTensor{&file, &tensor});
      if (!unique)
        throw tensor_error(place, tensor.name,
                           fmt::format("means the same as {} (both are {})", in_quotes(other->second.tensor->name),
                                       in_quotes(canonical)));
      tensor_bytes_ += tensor.bytes;
    }
  }
  if (dropped_ > 0) log(LogLevel::info, "{}: {} tensors of a vision tower are not used", place, dropped_);
  return origin_of;
}

const CheckpointTensor* Checkpoint::find(std::string_view canonical) const {
  const auto it = tensors_.find(canonical);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::vector<OpenedFile> Checkpoint::files() const {
  std::vector<OpenedFile> out;
  for (const auto& file : files_) out.push_back({file->path(), file->identity()});
  return out;
}

}  // namespace outrider
