#include "weights/panel_place.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "weights/file_error.h"
#include "weights/local_models.h"
#include "weights/sha256.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

Fingerprint sha256(std::string_view text) {
  Sha256 hash;
  hash.add(text);
  return hash.finish();
}

// models--<org>--<name>/snapshots/<revision> of the Hugging Face cache.
bool is_hub_snapshot(const fs::path& directory) {
  return directory.parent_path().filename() == "snapshots" &&
         directory.parent_path().parent_path().filename().string().starts_with("models--");
}

}  // namespace

std::vector<fs::path> panel_places(const fs::path& model, std::span<const OpenedFile> files) {
  std::error_code failed;
  const bool is_directory = fs::is_directory(model, failed);
  const fs::path real = fs::weakly_canonical(model, failed);
  if (failed) return {};
  const fs::path home = is_directory ? real : real.parent_path();
  const std::string name = is_directory ? "model" : real.filename().string();
  const bool foreign = is_hub_snapshot(home) || (!is_directory && fs::is_symlink(model, failed)) ||
                       std::any_of(files.begin(), files.end(),
                                   [&](const OpenedFile& file) { return fs::is_symlink(file.path, failed); });
  std::vector<fs::path> places;
  if (!foreign) places.push_back(home / ".outrider" / (name + ".panels"));
  try {
    const Fingerprint hash = sha256(real.string());
    places.push_back(panel_cache() / fmt::format("{}-{}.panels", is_directory ? home.filename().string() : name,
                                                 hex(std::span(hash).first(12))));
  } catch (const Error&) {
    // Neither HOME nor XDG_CACHE_HOME: there is no second place.
  }
  return places;
}

Fingerprint panel_fingerprint(std::span<const OpenedFile> files, const nlohmann::json& config,
                              std::string_view reading) {
  // Only packed weights are kept: f32 is the slow reference, five times as large, and no start of it is in a hurry.
  std::string text = fmt::format("outrider packed weights, layout {}\n", kPanelLayoutVersion);
  for (const OpenedFile& file : files)
    text += fmt::format("{} {} {} {} {}\n", in_quotes(file.path.filename().string()), file.identity.bytes,
                        file.identity.modified_ns, file.identity.changed_ns, file.identity.inode);
  return sha256(fmt::format("{}{}{}", text, config.dump(), reading));
}

bool unchanged(std::span<const OpenedFile> files) {
  return std::all_of(files.begin(), files.end(),
                     [](const OpenedFile& file) { return file_identity(file.path) == file.identity; });
}

}  // namespace outrider
