// A model directory, or a side-car of one, in HF or MLX layout as its files have it: names are canonical, values as
// stored. Inside this room only.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "weights/checkpoint.h"
#include "weights/stored_model.h"

namespace outrider {

class SafetensorsModel : public StoredModel {
 public:
  const Checkpoint& checkpoint() const { return checkpoint_; }

 protected:
  SafetensorsModel(std::filesystem::path path, Checkpoint checkpoint)
      : StoredModel(std::move(path)), checkpoint_(std::move(checkpoint)) {}

  Checkpoint checkpoint_;
};

// The directory with config.json as it lies there.
std::unique_ptr<SafetensorsModel> open_raw_directory(const std::filesystem::path& directory);
// These files of a directory as a side-car: names get `prefix` where they lack it, `config` says how they are
// quantized; `origin` names it in messages. Its path is that of the file where there is one, else of the directory.
std::unique_ptr<SafetensorsModel> open_side_car(const std::filesystem::path& directory,
                                                const std::vector<std::string>& files, const nlohmann::json& config,
                                                const std::string& origin, std::string_view prefix);

}  // namespace outrider
