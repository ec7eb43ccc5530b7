// Files for the tests of this room: a directory that goes away, hand-made safetensors images, a tiny llama in both
// forms.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "weights/gguf_writer.h"
#include "weights/safetensors_writer.h"

namespace outrider {

class TestDirectory {
 public:
  TestDirectory() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() / fmt::format("outrider-weights-{}-{}", getpid(), counter++);
    std::filesystem::create_directories(path_);
  }
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  std::filesystem::path write(std::string_view name, std::string_view text) const {
    const std::filesystem::path path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

 private:
  std::filesystem::path path_;
};

// u64 length, header, `data_bytes` bytes of data (1, 2, 3, ...).
inline std::string safetensors_image(std::string_view header, std::size_t data_bytes) {
  std::string image(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(image.data(), &length, 8);
  image += header;
  for (std::size_t i = 0; i < data_bytes; ++i) image += static_cast<char>(i + 1);
  return image;
}

// The message of the Error that `action` throws ("" if none), its hint appended after " | ".
inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.hint().empty() ? error.what() : fmt::format("{} | {}", error.what(), error.hint());
  }
  return "";
}

// What `action` writes to stderr, the log's lines among it.
inline std::string told_by(const std::function<void()>& action) {
  testing::internal::CaptureStderr();
  action();
  return testing::internal::GetCapturedStderr();
}

// A deterministic value in (-1, 1), different for every (seed, i).
inline float test_value(std::uint32_t seed, std::uint64_t i) {
  std::uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
  x = (x ^ x >> 31) * 0xBF58476D1CE4E5B9ull;
  x ^= x >> 29;
  return static_cast<float>(static_cast<std::int64_t>(x >> 40) - (1 << 23)) / static_cast<float>(1 << 23);
}
inline std::vector<float> test_values(std::uint32_t seed, std::size_t count, float scale = 1.0f) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = scale * test_value(seed, i);
  return out;
}

// A llama of 1 layer: E 64, H 4, K 2, D 16, F 96, V 40. `type` is that of its matrices.
struct TinyLlama {
  static constexpr std::int64_t kE = 64, kHeads = 4, kKv = 2, kD = 16, kF = 96, kV = 40;
  static std::vector<std::pair<std::string, std::vector<std::int64_t>>> matrices() {  // GGUF name, [out, in]
    return {{"token_embd", {kV, kE}},
            {"blk.0.attn_q", {kHeads * kD, kE}},
            {"blk.0.attn_k", {kKv * kD, kE}},
            {"blk.0.attn_v", {kKv * kD, kE}},
            {"blk.0.attn_output", {kE, kHeads * kD}},
            {"blk.0.ffn_gate", {kF, kE}},
            {"blk.0.ffn_up", {kF, kE}},
            {"blk.0.ffn_down", {kE, kF}}};
  }
  static std::vector<std::pair<std::string, GgufValue>> metadata() {
    return {{"general.architecture", std::string("llama")},
            {"llama.block_count", std::int64_t{1}},
            {"llama.embedding_length", kE},
            {"llama.feed_forward_length", kF},
            {"llama.context_length", std::int64_t{128}},
            {"llama.attention.head_count", kHeads},
            {"llama.attention.head_count_kv", kKv},
            {"llama.attention.layer_norm_rms_epsilon", 1e-5},
            {"tokenizer.ggml.bos_token_id", std::int64_t{1}},
            {"tokenizer.ggml.eos_token_id", std::int64_t{2}}};
  }
  // Matrix i holds test_values(i, ...).
  static GgufContents gguf(GgufType type) {
    GgufContents file{metadata(), {}};
    std::uint32_t seed = 0;
    for (const auto& [name, shape] : matrices()) {
      const auto values = test_values(seed++, static_cast<std::size_t>(shape[0] * shape[1]));
      file.tensors.push_back({name + ".weight", type, {shape[1], shape[0]}, gguf_encode(type, values)});
    }
    for (const char* name : {"output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"})
      file.tensors.push_back({name, GgufType::F32, {kE}, gguf_encode(GgufType::F32, test_values(seed++, kE))});
    return file;
  }
};

}  // namespace outrider
