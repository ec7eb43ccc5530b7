// Where the panel file of a model lies and which state of the model it belongs to.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "weights/panel_file.h"

namespace outrider {

// The files to look for and to try to write, in this order: <directory of the weights>/.outrider/<name>.panels, then
// ${XDG_CACHE_HOME:-~/.cache}/outrider/panels/<name>-<hash of the path>.panels. Only the second where the directory is
// not the model's own: a Hugging Face cache snapshot, or any whose weights are symbolic links. <name> is "model" for a
// directory, the file's name for GGUF. None where there is no cache directory either.
std::vector<std::filesystem::path> panel_places(const std::filesystem::path& model, std::span<const OpenedFile> files);

// Changes whenever packing would give other bytes: names, sizes, times (ns) and inodes of the weight files,
// config.json, how they are read (StoredModel::reading), and the layout version.
Fingerprint panel_fingerprint(std::span<const OpenedFile> files, const nlohmann::json& config,
                              std::string_view reading = {});

// Whether every file is still what it was when it was opened.
bool unchanged(std::span<const OpenedFile> files);

}  // namespace outrider
