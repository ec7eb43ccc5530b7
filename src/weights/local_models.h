// Models already on this machine: the Hugging Face cache and Outrider's own (serving.md 1.1). Nothing is downloaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace outrider {

struct LocalModel {
  std::string name;            // "org/name", or the directory or file name in Outrider's cache
  std::filesystem::path path;  // a model directory or a .gguf file
  std::string origin;          // "huggingface" or "outrider"
  std::uint64_t bytes = 0;     // of the files beside and including the weights
};

// $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub.
std::filesystem::path huggingface_cache();
// ${XDG_CACHE_HOME:-~/.cache}/outrider/models; an Error without HOME and XDG_CACHE_HOME, as above and below.
std::filesystem::path outrider_cache();

// ${XDG_CACHE_HOME:-~/.cache}/outrider/panels: panel files of models whose own directory does not take them. Whatever
// lies there may be removed at any time.
std::filesystem::path panel_cache();

// The model that comes with the program (models/ of the source tree): beside its binary as ../share/outrider/models (an
// installation) or ../models (a build folder); empty where neither is there.
std::filesystem::path embedded_model();

// Every usable model (a config.json with weights, or a .gguf file), sorted by name. Reads directories only; what cannot
// be read is left out. A Hugging Face model is the snapshot that refs/main names.
std::vector<LocalModel> list_local_models();

}  // namespace outrider
