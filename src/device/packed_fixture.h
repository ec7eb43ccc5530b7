// Test support: random packed matrices, written straight from the layout formula of numerics.md section 3, and batches
// over plain buffers.
#pragma once

#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/cpu_device.h"

namespace outrider {

struct PackedFixture {
  PackedMatrix view;
  AlignedBuffer storage;

  // Codes 0..2^bits-1, scales about 1/2^bits, biases that centre the values; f32 scales.
  static PackedFixture affine(std::int64_t n, std::int64_t k, int bits, int group, std::uint32_t seed) {
    PackedFixture out;
    out.view = {.kind = PackedKind::affine, .scale_type = FloatType::f32, .bits = bits, .group = group, .n = n, .k = k};
    out.allocate();
    std::mt19937 random(seed);
    const std::uint32_t codes = 1U << bits;
    for (std::int64_t row = 0; row < n; ++row)
      for (std::int64_t g = 0; g < k / group; ++g) {
        std::byte* block = out.block(row, g);
        const float scale = (0.5F + static_cast<float>(random() % 1000) / 1000) / static_cast<float>(codes) / 16;
        const float bias = -scale * static_cast<float>(codes) / 2;
        std::memcpy(block + row % 16 * 4, &scale, 4);
        std::memcpy(block + 64 + row % 16 * 4, &bias, 4);
        // 3, 5 and 6 bits are a plane of the low 2, 4 and 4 and one of the rest.
        const int low = bits == 3 ? 2 : bits == 5 || bits == 6 ? 4 : bits;
        for (int j = 0; j < group; ++j) {
          const std::uint32_t code = random() % codes;
          put_code(block + 128, row % 16, low, j, code & ((1U << low) - 1));
          if (low < bits) put_code(block + 128 + group * low / 32 * 64, row % 16, bits - low, j, code >> low);
        }
      }
    return out;
  }

  // mxfp4 (group 32) or nvfp4 (16): all codes, halved scales about 1/32.
  static PackedFixture e2m1(std::int64_t n, std::int64_t k, int group, std::uint32_t seed) {
    PackedFixture out;
    out.view = {.kind = PackedKind::e2m1, .bits = 4, .group = group, .n = n, .k = k};
    out.allocate();
    std::mt19937 random(seed);
    for (std::int64_t row = 0; row < n; ++row)
      for (std::int64_t g = 0; g < k / group; ++g) {
        std::byte* block = out.block(row, g);
        const float scale = (0.5F + static_cast<float>(random() % 1000) / 1000) / 32;
        std::memcpy(block + row % 16 * 4, &scale, 4);
        for (int j = 0; j < group; ++j) put_code(block + 64, row % 16, 4, j, random() % 16);
      }
    return out;
  }

  static PackedFixture dense(std::int64_t n, std::int64_t k, std::uint32_t seed) {
    PackedFixture out;
    out.view = {.kind = PackedKind::dense, .scale_type = FloatType::f32, .n = n, .k = k};
    out.allocate();
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 0.1F);
    for (std::int64_t row = 0; row < n; ++row)
      for (std::int64_t j = 0; j < k; ++j) {
        const float value = normal(random);
        std::memcpy(out.block(row, j) + row % 16 * 4, &value, 4);
      }
    return out;
  }

 private:
  void allocate() {
    storage = AlignedBuffer(view.bytes(), MemoryPart::weights);
    view.data = storage.data();
  }
  std::byte* block(std::int64_t row, std::int64_t depth) {
    return storage.data() + view.offset(row / 96, depth, row % 96 / 16);
  }
  // Word i of a row holds codes (32/b)*i + 2p+e at bits b*p + 16e.
  static void put_code(std::byte* words, std::int64_t row, int bits, int j, std::uint32_t code) {
    const int per_word = 32 / bits, i = j / per_word, p = j % per_word / 2, e = j % 2;
    std::uint32_t word;
    std::memcpy(&word, words + (i * 16 + row) * 4, 4);
    word |= code << (bits * p + 16 * e);
    std::memcpy(words + (i * 16 + row) * 4, &word, 4);
  }
};

// An owned tensor.
struct Values {
  std::vector<float> data;
  std::int64_t rows, width;

  Values(std::int64_t rows, std::int64_t width)
      : data(static_cast<std::size_t>(rows * width)), rows(rows), width(width) {}
  static Values random(std::int64_t rows, std::int64_t width, std::uint32_t seed) {
    Values out(rows, width);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1);
    for (float& value : out.data) value = normal(random);
    return out;
  }
  Tensor tensor() { return {data.data(), rows, width, width}; }
  float* row(std::int64_t r) { return data.data() + r * width; }
};

inline bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// KV blocks of one row in plain memory, filled with a pattern that would poison any sum that read it.
struct BlocksFixture {
  std::vector<AlignedBuffer> storage;
  std::vector<std::byte*> pointers;

  BlocksFixture(const KvLayout& layout, std::int64_t tokens) {
    for (std::int64_t b = 0; b * kBlockKeys < tokens; ++b) {
      storage.emplace_back(layout.block_bytes(), MemoryPart::kv);
      std::memset(storage.back().data(), 0xff, layout.block_bytes());
      pointers.push_back(storage.back().data());
    }
  }
};

// Every instruction set this machine can run.
inline std::vector<const KernelTable*> present_tables() {
  std::vector<const KernelTable*> tables;
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::amx, Isa::neon})
    if (const KernelTable* table = kernel_table(isa)) tables.push_back(table);
  return tables;
}

}  // namespace outrider
