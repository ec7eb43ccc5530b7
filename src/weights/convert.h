// GGUF or HF safetensors -> a directory in MLX layout (models.md 1.11, 1.12; serving.md 1.2 `convert`): config.json
// with the quantization map, model.safetensors (or shards with an index), tokenizer files. Without q_bits the values
// are those of the source: GGUF blocks, mxfp4 and nvfp4 keep their codes, floats are copied, mxfp8 becomes the floats
// it means. The target appears only by the rename of a
// temporary sibling directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weights/gguf_blocks.h"
#include "weights/model_source.h"

namespace outrider {

struct ConvertOptions {
  std::optional<int> q_bits;  // quantize every Linear and Embedding: 2, 3, 4, 5, 6 or 8 (the command line offers 4, 8)
  int q_group_size = 64;      // 32, 64 or 128
  // "PATTERN=BITS[/GROUP]", the last that matches a module path wins, with or without q_bits. PATTERN is a shell glob
  // over paths like model.layers.0.mlp.down_proj ('*' crosses dots); BITS 16 leaves the module as stored.
  std::vector<std::string> overrides;
  GgufImport gguf;
  SourceOptions reading;  // of the source
  // A directory to make for the MTP head alone (read with --mtp); empty: it stays in the model.
  std::filesystem::path mtp_side_car;
  std::uint64_t max_shard_bytes = 5'000'000'000;
  // Further files by name (a GGUF's tokenizer.json and tokenizer_config.json, made by the text room).
  std::map<std::string, std::string> extra_files;
  std::function<bool()> cancelled;                                        // polled; true: Error (interrupted)
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // bytes written; may be empty
  ParallelFor parallel;                                                   // may be empty
};

struct ConvertItem {
  std::string name;         // module path, or tensor name for what is no matrix
  std::string kind;         // "affine", "mxfp4", "nvfp4", "f32", "f16", "bf16"
  int bits = 0, group = 0;  // of the first three
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;   // in the output, with scales and biases
  bool requantized = false;  // false: the values of the source
};

struct ConvertPlan {
  std::vector<ConvertItem> items;  // sorted by name
  std::uint64_t tensors = 0;       // in the output files
  std::uint64_t bytes = 0;
  std::uint64_t weights = 0;  // values, for bits_per_weight
  double bits_per_weight = 0;
};

// What would be written. Errors: usage (options), data (source), as for convert().
ConvertPlan plan_convert(const std::filesystem::path& source, const ConvertOptions& options);

struct ConvertResult {
  std::filesystem::path out;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  double bits_per_weight = 0;
};

// Errors: usage (options, a target that exists and is not an empty directory), data (source), runtime (disk),
// interrupted. Nothing remains of a failed or cancelled conversion.
ConvertResult convert(const std::filesystem::path& source, const std::filesystem::path& target,
                      const ConvertOptions& options);

}  // namespace outrider
