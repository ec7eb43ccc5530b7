// Writing a GGUF version 3 file: metadata and tensors, whole or not at all. For tests, oracles and round trips.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weights/gguf.h"

namespace outrider {

// Integers are written as u32 if they fit (the usual width of GGUF keys), else as i64; floats as f32; lists alike.
struct GgufWriteTensor {
  std::string name;
  GgufType type = GgufType::F32;
  std::vector<std::int64_t> dims;  // fastest first: [in, out]
  std::vector<std::byte> data;     // blocks, row by row
};

struct GgufContents {
  std::vector<std::pair<std::string, GgufValue>> metadata;  // in the order written
  std::vector<GgufWriteTensor> tensors;
};

// The file image. CHECKs that data sizes match dims and types; names and keys are written as given.
std::vector<std::byte> gguf_image(const GgufContents& contents);
void write_gguf(const std::filesystem::path& target, const GgufContents& contents);

// Plain round-to-nearest encoders of one row of values (a multiple of 32 for the block types): F32, F16, BF16, Q4_0,
// Q4_1, Q5_0, Q5_1, Q8_0, MXFP4. They choose scales as simply as possible: d = largest magnitude over the code range
// (MXFP4: the power of two that takes it to [2, 4)).
std::vector<std::byte> gguf_encode(GgufType type, std::span<const float> values);
// Blocks from known parts: scale d (and m for Q4_1, Q5_1) per 32 values, unsigned codes (Q8_0: stored value + 128).
// MXFP4: e2m1 codes, and d a power of two (a NaN is stored as the byte that is none).
std::vector<std::byte> gguf_blocks(GgufType type, std::span<const std::uint8_t> codes, std::span<const float> d,
                                   std::span<const float> m);

}  // namespace outrider
