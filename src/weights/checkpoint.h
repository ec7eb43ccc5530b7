// The weight files of a model directory as one set of tensors with canonical names (models.md 1.5, 1.12).
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weights/safetensors.h"

namespace outrider {

// HF's name without wrapper ("model.language_model.layers.0.x" -> "model.layers.0.x"); empty for tensors of a vision
// tower, which are dropped. The first matching prefix of models.md 1.12 decides; other names stay.
std::string canonical_name(std::string_view tensor);
// The same for a module path ("language_model.lm_head" -> "lm_head").
std::string canonical_module(std::string_view path);

struct CheckpointTensor {
  const SafetensorsFile* file = nullptr;
  const StoredTensor* tensor = nullptr;  // its name is the one in the file
};

// Opens every weight file of a directory: those of model.safetensors.index.json if present, else model.safetensors,
// else model*.safetensors. Move-only. Errors (data): no weights, a bad index, one name in two files, two names that
// mean one.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& directory);
  // These files of a directory alone. Canonical names without `prefix` get it (side-cars name "fc.weight" what a trunk
  // names "mtp.fc.weight").
  Checkpoint(const std::filesystem::path& directory, const std::vector<std::string>& files, std::string_view prefix);

  const std::map<std::string, CheckpointTensor, std::less<>>& tensors() const { return tensors_; }  // by canonical name
  const CheckpointTensor* find(std::string_view canonical) const;
  // Metadata of all files together (a key with two values: the first file's).
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::uint64_t tensor_bytes() const { return tensor_bytes_; }
  std::vector<OpenedFile> files() const;            // in name order
  std::size_t dropped() const { return dropped_; }  // tensors of vision towers

 private:
  // The file of every tensor, by the name in the file.
  std::map<std::string, std::string> open(const std::filesystem::path& directory, const std::vector<std::string>& files,
                                          std::string_view prefix);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
  std::uint64_t tensor_bytes_ = 0;
  std::size_t dropped_ = 0;
};

// The file names of the weights of a directory, sorted, without opening them; the index is checked for form (plain
// names that exist). Throws Error (data).
std::vector<std::string> weight_files(const std::filesystem::path& directory);

}  // namespace outrider
