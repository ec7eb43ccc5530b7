// Builds the modules of a graph from a model source, or only plans them from its headers: one description of a graph's
// tensors serves the plan, the completeness check and the load.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layers/modules.h"
#include "weights/model_source.h"

namespace outrider {

// Output and input width of a Linear, by its path.
struct LinearShape {
  std::int64_t out = 0, in = 0;
};
using LinearShapes = std::map<std::string, LinearShape, std::less<>>;

enum class HasBias : std::uint8_t { no, yes };

// Borrows the source. Paths are canonical module paths; `kind` is the heading bytes are summed under ("attention").
class ModuleBuilder {
 public:
  static ModuleBuilder plan(const ModelSource& source, Precision precision);
  static ModuleBuilder load(ModelSource& source, Precision precision);

  // A missing tensor is noted (plan) or an Error (load); a wrong shape is an Error (data).
  Linear linear(std::string_view kind, const std::string& path, std::int64_t n, std::int64_t k, HasBias bias);
  Embedding embedding(std::string_view kind, const std::string& path, std::int64_t n, std::int64_t k);
  Norm norm(std::string_view kind, const std::string& path, std::int64_t width, float eps);
  // Float tensors that are no module, by their whole names: [n], and [n, k] row-major. Empty when planned.
  AlignedBuffer vector(std::string_view kind, const std::string& tensor, std::int64_t n);
  AlignedBuffer table(std::string_view kind, const std::string& tensor, std::int64_t n, std::int64_t k);

  std::size_t bytes() const;  // packed, as charged to MemoryPart::weights
  std::int64_t parameters() const { return parameters_; }
  const std::vector<std::pair<std::string, std::size_t>>& bytes_by_kind() const { return bytes_by_kind_; }

  // Every Linear asked for.
  const LinearShapes& linears() const { return linears_; }

  // Error (data) with both lists unless every needed tensor exists and every tensor of the source is needed or dropped
  // (models.md 1.5).
  void check_complete(const std::function<bool(std::string_view tensor)>& dropped) const;

 private:
  ModuleBuilder(const ModelSource& source, ModelSource* loads, Precision precision);
  PackedWeight matrix(std::string_view kind, const std::string& path, std::int64_t n, std::int64_t k, HasBias bias);
  AlignedBuffer floats(std::string_view kind, const std::string& tensor, std::int64_t count,
                       const std::function<AlignedBuffer(ModelSource&)>& load);
  bool present(const std::string& tensor);
  void count(std::string_view kind, std::size_t bytes, std::int64_t parameters);

  const ModelSource& source_;
  ModelSource* loads_;  // null: plan only
  Precision precision_;
  std::int64_t parameters_ = 0;
  std::vector<std::pair<std::string, std::size_t>> bytes_by_kind_;
  std::set<std::string, std::less<>> floats_;  // asked for; headers know no vectors
  std::vector<std::string> missing_;
  LinearShapes linears_;
};

}  // namespace outrider
