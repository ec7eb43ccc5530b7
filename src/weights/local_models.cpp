#include "weights/local_models.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>

#include "base/error.h"
#include "weights/file_error.h"
#include "weights/json_strict.h"
#include "weights/model_source.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path user_cache() {
  const std::string cache = environment("XDG_CACHE_HOME");
  if (!cache.empty()) return cache;
  const std::string home = environment("HOME");
  if (home.empty())
    throw Error(ErrorKind::usage, "neither HOME nor XDG_CACHE_HOME is set, so there is no cache directory",
                "set HOME or XDG_CACHE_HOME, or give models and --out as paths");
  return fs::path(home) / ".cache";
}

// Entries of a directory, sorted; none if it cannot be read.
std::vector<fs::path> entries(const fs::path& directory) {
  std::vector<fs::path> out;
  std::error_code failed;
  for (fs::directory_iterator it(directory, failed), end; !failed && it != end; it.increment(failed))
    out.push_back(it->path());
  std::sort(out.begin(), out.end());
  return out;
}

bool is_model_directory(const fs::path& path) {
  std::error_code failed;
  if (!fs::exists(path / "config.json", failed)) return false;
  const auto files = entries(path);
  return std::any_of(files.begin(), files.end(), [](const fs::path& file) {
    return file.filename().string().starts_with("model") && file.extension() == ".safetensors";
  });
}

bool is_gguf(const fs::path& path) {
  std::error_code failed;
  return path.extension() == ".gguf" && fs::is_regular_file(path, failed);
}

std::uint64_t bytes_of(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) {
    const std::uintmax_t size = fs::file_size(path, failed);
    return failed ? 0 : size;
  }
  std::uint64_t bytes = 0;
  for (const fs::path& file : entries(path))
    if (fs::is_regular_file(file, failed)) bytes += bytes_of(file);
  return bytes;
}

// "models--org--name" -> "org/name"; the parts themselves never hold "--" twice in the hub's rules for names.
std::optional<std::string> hub_name(const std::string& folder) {
  if (!folder.starts_with("models--")) return std::nullopt;
  std::string name = folder.substr(8);
  if (const auto at = name.find("--"); at != std::string::npos) name.replace(at, 2, "/");
  return name;
}

// The snapshot refs/main names, if it is there.
std::optional<fs::path> main_snapshot(const fs::path& repository) {
  std::error_code failed;
  if (!fs::is_regular_file(repository / "refs" / "main", failed)) return std::nullopt;
  std::string revision = read_text_file(repository / "refs" / "main", 256);
  while (!revision.empty() && std::isspace(static_cast<unsigned char>(revision.back())) != 0) revision.pop_back();
  if (revision.empty() || revision.find('/') != std::string::npos || revision.find("..") != std::string::npos)
    return std::nullopt;
  const fs::path snapshot = repository / "snapshots" / revision;
  if (!fs::is_directory(snapshot, failed)) return std::nullopt;
  return snapshot;
}

// A snapshot may be a model directory, or hold .gguf files, each a model of its own.
void add_snapshot(const std::string& name, const fs::path& snapshot, std::vector<LocalModel>& out) {
  if (is_model_directory(snapshot)) out.push_back({name, snapshot, "huggingface", bytes_of(snapshot)});
  for (const fs::path& file : entries(snapshot))
    if (is_gguf(file)) out.push_back({name + "/" + file.filename().string(), file, "huggingface", bytes_of(file)});
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

fs::path huggingface_cache() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  return user_cache() / "huggingface" / "hub";
}

fs::path outrider_cache() { return user_cache() / "outrider" / "models"; }
fs::path panel_cache() { return user_cache() / "outrider" / "panels"; }

std::vector<LocalModel> list_local_models() {
  std::vector<LocalModel> out;
  for (const fs::path& repository : entries(huggingface_cache())) {
    const auto name = hub_name(repository.filename().string());
    if (!name) continue;
    try {
      if (const auto snapshot = main_snapshot(repository)) add_snapshot(*name, *snapshot, out);
    } catch (const Error&) {
      // An unreadable ref is no model; the list shows what can be used.
    }
  }
  for (const fs::path& entry : entries(outrider_cache()))
    if (is_model_directory(entry) || is_gguf(entry))
      out.push_back({entry.filename().string(), entry, "outrider", bytes_of(entry)});
  std::sort(out.begin(), out.end(), [](const LocalModel& a, const LocalModel& b) { return a.name < b.name; });
  return out;
}

fs::path resolve_model(std::string_view model) {
  if (model.empty()) throw Error(ErrorKind::usage, "MODEL is empty", "give a directory, a .gguf file or a name");
  const fs::path path(model);
  std::error_code failed;
  if (fs::exists(path, failed)) return path;
  const std::vector<LocalModel> models = list_local_models();
  const std::string wanted = lower(std::string(model));
  std::vector<const LocalModel*> exact, matches;
  for (const LocalModel& candidate : models) {
    if (lower(candidate.name) == wanted) exact.push_back(&candidate);
    if (lower(candidate.name).find(wanted) != std::string::npos) matches.push_back(&candidate);
  }
  if (exact.size() == 1) return exact[0]->path;
  if (matches.size() == 1) return matches[0]->path;
  if (matches.size() > 1) {
    std::string names;
    for (std::size_t i = 0; i < std::min<std::size_t>(matches.size(), 8); ++i)
      names += (i == 0 ? "" : ", ") + matches[i]->name;
    if (matches.size() > 8) names += fmt::format(" and {} more", matches.size() - 8);
    throw Error(ErrorKind::usage,
                fmt::format("{} matches {} local models: {}", in_quotes(model), matches.size(), names),
                "give more of the name, or a path");
  }
  throw Error(ErrorKind::data,
              fmt::format("no model {}: not a path, and not in {} or {}", in_quotes(model),
                          huggingface_cache().string(), outrider_cache().string()),
              "give a directory or a .gguf file; `outrider models list` shows what is here");
}

fs::path embedded_model() {
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (failed) return {};
  const fs::path above = program.parent_path().parent_path();
  for (const char* place : {"share/outrider/models", "models"}) {
    const fs::path model = above / place / "tiny-qwen3_5-mtp";
    if (fs::exists(model / "config.json", failed)) return model;
  }
  return {};
}

}  // namespace outrider
