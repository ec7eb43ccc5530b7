// What both kinds of model files share behind ModelSource: bookkeeping of used tensors, shape checks, packing. Inside
// this room only; convert.cpp reads its rows.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "weights/gguf_blocks.h"
#include "weights/pack.h"

namespace outrider {

class StoredModel : public ModelSource {
 public:
  const nlohmann::json& config() const override { return config_; }
  const nlohmann::json& generation_config() const override { return generation_config_; }
  const std::filesystem::path& path() const override { return path_; }
  ModuleInfo module(std::string_view path, std::int64_t n, std::int64_t k) const override;
  PackedWeight load_matrix(std::string_view path, std::int64_t n, std::int64_t k, Precision precision) override;
  AlignedBuffer load_vector(std::string_view tensor, std::int64_t n) override;
  AlignedBuffer load_table(std::string_view tensor, std::int64_t n, std::int64_t k) override;
  void set_parallel_for(ParallelFor parallel) override { parallel_ = std::move(parallel); }
  std::vector<std::string> unused_tensors() const override;

  // The matrix `path` as rows, its parameters checked against the shapes; `k` is the width the model needs (-1:
  // unknown). Throws Error (data).
  virtual MatrixRows rows(std::string_view path, std::int64_t k) const = 0;
  // A float tensor of any shape as f32.
  struct Values {
    FloatType type = FloatType::f32;  // as stored
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };
  virtual Values values(std::string_view tensor) const = 0;
  // Canonical names and shapes (as stored, slowest first) of all tensors, sorted by name.
  struct NamedShape {
    std::string name;
    std::vector<std::int64_t> shape;
  };
  virtual std::vector<NamedShape> tensors() const = 0;
  // The files the tensors come from, in name order, as they were when they were opened.
  virtual std::vector<OpenedFile> weight_files() const = 0;
  // The file or directory that messages about a tensor name.
  virtual std::string place_of(std::string_view /*tensor*/) const { return path_.string(); }

  // What was decided about the files beyond their bytes, as one line; a change of it changes what load_*() returns.
  virtual std::string reading() const { return {}; }
  // The name a tensor has in the files of a conversion, and what their metadata says beside format and source.
  virtual std::string written_name(const std::string& tensor) const { return tensor; }
  virtual std::map<std::string, std::string> written_metadata() const { return {{"outrider.layout", "mlx"}}; }

 protected:
  StoredModel(std::filesystem::path path) : path_(std::move(path)) {}
  Error missing(std::string_view tensor) const;

  std::filesystem::path path_;
  nlohmann::json config_;
  nlohmann::json generation_config_;

 private:
  void mark_used(std::string_view tensor) const;
  AlignedBuffer load_floats(std::string_view tensor, std::vector<std::int64_t> shape);
  MatrixRows checked_rows(std::string_view path, std::int64_t n, std::int64_t k) const;

  ParallelFor parallel_;
  mutable std::mutex lock_;
  mutable std::set<std::string, std::less<>> used_;
};

std::unique_ptr<StoredModel> open_stored_model(const std::filesystem::path& path, const GgufImport& import,
                                               const SourceOptions& options);
std::unique_ptr<StoredModel> open_safetensors_model(const std::filesystem::path& directory,
                                                    const SourceOptions& options);
std::unique_ptr<StoredModel> open_gguf_model(const std::filesystem::path& file, const GgufImport& import);

}  // namespace outrider
