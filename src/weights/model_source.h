// A model on disk, whatever its form (directory of safetensors in HF or MLX layout, or a GGUF file), read as modules
// with canonical Hugging Face names (models.md sections 1 and 1.12). Headers are read and checked at open; tensor data
// only when a module is loaded, after which its source pages are dropped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/memory.h"
#include "kernels/packed_matrix.h"
#include "weights/checkpoint_facts.h"
#include "weights/sha256.h"

namespace outrider {

// `packed`: as stored (affine and e2m1 codes into panels of their width, floats into dense panels of their own type).
// `f32`: everything dequantized to f32 dense panels: the reference path of `--precision f32`.
enum class Precision { packed, f32 };

// Whether the packed weights of a model are kept in a file of their own (weights/panel_file.h). `automatic` writes one
// for models large enough to gain by it, `always` for all; both use a current one.
enum class PanelUse : std::uint8_t { automatic, always, off };

// An owned packed matrix; `view.data` points into `storage`, or into `mapping`, the panel file it shares with the other
// weights. Both kinds are charged to MemoryPart::weights.
struct PackedWeight {
  PackedMatrix view;
  AlignedBuffer storage;
  std::shared_ptr<const MappedFile> mapping;
  MemoryCharge charge;  // of the mapped bytes
};

// What the headers say of one weight matrix [n, k] ("model.layers.0.mlp.gate_proj").
struct ModuleInfo {
  PackedKind kind = PackedKind::dense;
  FloatType type = FloatType::f32;  // affine: of scale and bias as they will be packed; e2m1: f32; dense: of the values
  int bits = 0;                     // affine: as stored, 1..8 (1 is packed into 2, 7 into 8); e2m1: 4
  int group = 0;                    // affine: 32, 64, 128; e2m1: 32 (mxfp4), 16 (nvfp4)
  std::int64_t n = 0, k = 0;
  bool has_bias = false;  // an additive <path>.bias [n]
};

// Calls task(i) for i in [0, count), on any threads, and returns when all are done. The tasks given to it never throw.
using ParallelFor = std::function<void(std::int64_t count, const std::function<void(std::int64_t)>& task)>;

// The shape and panel parameters this module will have once packed (data == nullptr). One rule for plan and load.
PackedMatrix packed_form(const ModuleInfo& module, Precision precision);

class ModelSource {
 public:
  virtual ~ModelSource() = default;

  // The model's config.json (for GGUF: the equivalent built from its metadata), and generation_config.json or null.
  virtual const nlohmann::json& config() const = 0;
  virtual const nlohmann::json& generation_config() const = 0;
  virtual const std::filesystem::path& path() const = 0;
  virtual std::uint64_t stored_bytes() const = 0;  // sum of the tensor data on disk

  // Canonical tensor names that exist, e.g. "model.norm.weight", for the registry's completeness check.
  virtual bool has(std::string_view tensor) const = 0;
  // Error (data) that names the module when it is missing or misshapen (an expected n or k of -1 is not checked).
  virtual ModuleInfo module(std::string_view path, std::int64_t n, std::int64_t k) const = 0;
  virtual PackedWeight load_matrix(std::string_view path, std::int64_t n, std::int64_t k, Precision precision) = 0;
  // Packing then runs on these threads (default: the caller's). load_matrix and load_vector may also be called from
  // several threads at once.
  virtual void set_parallel_for(ParallelFor) {}
  // A float tensor [n] as f32 (norm weights, additive biases); finite, else Error (data).
  virtual AlignedBuffer load_vector(std::string_view tensor, std::int64_t n) = 0;
  // A float tensor [n, k] as f32, row-major (the taps of a convolution); the same.
  virtual AlignedBuffer load_table(std::string_view tensor, std::int64_t n, std::int64_t k) = 0;
  // Names neither loaded nor asked about by module()/load_*, sorted. The model refuses to load unless each is on the
  // family's drop list (models.md 1.5).
  virtual std::vector<std::string> unused_tensors() const = 0;

  // What was decided about a checkpoint of a family with several layouts; null for the others. Every tensor above is
  // already in the one form a graph reads: norms as they multiply, in_proj_{qkv,z,b,a} apart.
  virtual const CheckpointFacts* facts() const { return nullptr; }
  // Identity of a ready MTP head (models.md 4.5): SHA-256 over canonical name, dtype, shape and bytes of its tensors,
  // how their norms are read, and the state of the trunk's files. Reads all of them. Programming error without a head.
  virtual Sha256Digest mtp_identity() const;
};

// Opens a model directory or a .gguf file. Error (data) on every fault of models.md 1.4 to 1.7, 1.11, 1.12 and 4.3;
// `options` that do not apply to the model: Error (usage).
std::unique_ptr<ModelSource> open_model_source(const std::filesystem::path& path, const SourceOptions& options = {});

// MODEL of the command line: a directory, a .gguf file, an org/name in the local Hugging Face cache, or a substring
// that matches exactly one model of the cache directories (serving.md 1.1). Ambiguity: Error (usage) listing
// candidates; none: Error (data) saying where was looked.
std::filesystem::path resolve_model(std::string_view model);

}  // namespace outrider
