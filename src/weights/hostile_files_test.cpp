// The table of broken inputs and the exact message each gets (docs/hostile-files.md is this table; with
// OUTRIDER_UPDATE_DOCS=1 the test rewrites it). Every row makes a real file and opens it as the program does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "weights/file_error.h"
#include "weights/gguf_llama.h"
#include "weights/json_strict.h"
#include "weights/model_source.h"
#include "weights/test_files.h"

namespace outrider {
namespace {

struct Row {
  std::string input;                               // what is wrong, in a few words
  std::function<void(const TestDirectory&)> make;  // leaves a model in the directory
  std::string open;                                // what is opened, relative to the directory ("" = itself)
  std::string message;                             // with the directory spelled DIR; hint, if not kGetAnew, after " | "
};

// --- safetensors ---
Row header(std::string input, std::string json, std::size_t data, std::string message) {
  return {std::move(input),
          [json = std::move(json), data](const TestDirectory& dir) {
            dir.write("config.json", "{}");
            dir.write("model.safetensors", safetensors_image(json, data));
          },
          "", "DIR/model.safetensors: " + std::move(message)};
}
Row raw(std::string input, std::string bytes, std::string message) {
  return {std::move(input),
          [bytes = std::move(bytes)](const TestDirectory& dir) {
            dir.write("config.json", "{}");
            dir.write("model.safetensors", bytes);
          },
          "", "DIR/model.safetensors: " + std::move(message)};
}
std::string one(std::string fields) { return R"({"w":{)" + std::move(fields) + "}}"; }

std::vector<Row> safetensors_rows() {
  std::string long_name(513, 'n'), huge_header(8, '\0');
  const std::uint64_t huge = 1ull << 63;
  std::memcpy(huge_header.data(), &huge, 8);
  return {
      raw("empty file", "", "0 bytes, a safetensors file has at least 8"),
      raw("header length 2^63", huge_header + "{}", "header length 9223372036854775808 (accepted: 2..100000000)"),
      raw("header longer than the file", safetensors_image("{}", 0).replace(0, 1, "\x40"),
          "header length 64, but only 2 bytes follow (truncated?)"),
      header("header is a list", "[1]", 0, "header does not start with '{'"),
      header("header is cut", "{\"w\":", 0, "header is not valid JSON at byte 6, near '\"w\":'"),
      header("header is not UTF-8", "{\"\xff\":1}", 0, "header is not valid JSON at byte 3, near '\"\\xff'"),
      header("bytes after a NUL", std::string("{}\0{}", 5), 0, "header contains a NUL byte"),
      header(
          "one name twice",
          R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
          2, "tensor 'w': duplicate key"),
      header("one field twice", one(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])"), 1,
             "tensor 'w': duplicate key 'dtype'"),
      header("deep nesting", one(R"("x":{"y":{"z":{}}})"), 0, "tensor 'w': header nested deeper than the limit of 4"),
      header("name of 513 bytes", R"({")" + long_name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
             "tensor name of 513 bytes (limit 1..512): '" + std::string(96, 'n') + "...'"),
      header("terminal escape in a name", "{\"\\u001b[2J\":{\"dtype\":\"X\"}}", 0,
             "tensor '\\x1b[2J': unknown dtype 'X'"),
      header("dimension 1.0", one(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])"), 1,
             "tensor 'w': shape holds '1.0', not a list of non-negative integers"),
      header("dimension -1", one(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1,
             "tensor 'w': shape holds -1, not a list of non-negative integers"),
      header("dimensions that overflow", one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
             0, "tensor 'w': shape [4294967296, 4294967296] overflows 64 bits"),
      header("nine dimensions", one(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"), 1,
             "tensor 'w': rank exceeds the limit of 8"),
      header("offsets of another size", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4,
             "tensor 'w': shape [2] of F32 needs 8 bytes, data_offsets hold 4"),
      header("offsets run backwards", one(R"("dtype":"U8","shape":[1],"data_offsets":[2,1])"), 2,
             "tensor 'w': data_offsets [2, 1] run backwards"),
      header("data outside the file", one(R"("dtype":"U8","shape":[9],"data_offsets":[0,9])"), 8,
             "tensor 'w': data_offsets end at 9, the file holds 8 bytes of data (truncated?)"),
      header(
          "two tensors share bytes",
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
          3, "tensor 'b': begins at 1, inside the tensor that ends at 2 (overlap)"),
      header(
          "bytes of no tensor",
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
          3, "tensor 'b': begins at 2, the bytes from 1 belong to no tensor (hole)"),
      header("payload after the last tensor", one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"), 5,
             "tensors end at 1, the file holds 5 bytes of data"),
      header("metadata that is no string", R"({"__metadata__":{"format":7}})", 0,
             "tensor '__metadata__': value of 'format' is 7, not a string"),
      {"weights are a fifo",
       [](const TestDirectory& dir) {
         dir.write("config.json", "{}");
         ASSERT_EQ(mkfifo((dir / "model.safetensors").c_str(), 0600), 0);
       },
       "", "DIR/model.safetensors is not a regular file | give a file"},
  };
}

// --- directory, index, config ---
std::vector<Row> directory_rows() {
  const std::string good = safetensors_image(one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 4);
  const auto config = [good](std::string input, std::string text, std::string message) -> Row {
    return {std::move(input),
            [good, text](const TestDirectory& dir) {
              dir.write("config.json", text);
              dir.write("model.safetensors", good);
            },
            "", std::move(message)};
  };
  const auto index = [good](std::string input, std::string text, std::string message) -> Row {
    return {std::move(input),
            [good, text](const TestDirectory& dir) {
              dir.write("config.json", "{}");
              dir.write("model.safetensors", good);
              dir.write("model.safetensors.index.json", text);
            },
            "", "DIR/model.safetensors.index.json: " + std::move(message)};
  };
  return {
      {"nothing there", [](const TestDirectory&) {}, "none",
       "DIR/none does not exist | a model is a directory or a .gguf file"},
      {"no config", [](const TestDirectory&) {}, "",
       "cannot open DIR/config.json: No such file or directory | check the path and its permissions"},
      {"no weights", [](const TestDirectory& dir) { dir.write("config.json", "{}"); }, "",
       "DIR: no weights found (looked for model.safetensors, model*.safetensors and an index) | put the weights beside "
       "config.json, or give another directory"},
      config("config is a list", "[]", "DIR/config.json: is array, not a JSON object"),
      config("config key twice", R"({"a":1,"a":2})",
             "DIR/config.json: duplicate key 'a' | correct it there, or get the file anew"),
      config("config of 100,000 brackets", std::string(100000, '['),
             "DIR/config.json: JSON nested deeper than the limit of 32 | correct it there, or get the file anew"),
      config(
          "unknown quantization mode", R"({"quantization":{"mode":"int4"}})",
          "DIR/config.json: quantization.mode is \"int4\" (accepted: affine, mxfp4, nvfp4, mxfp8) | take a model or a "
          "copy with an accepted value"),
      config("quantized by another tool", R"({"quantization_config":{"quant_method":"gptq"}})",
             "DIR/config.json: quant_method 'gptq' is not available in this version (accepted: none, the MLX form) | "
             "take the float (bf16) checkpoint or an MLX or GGUF copy of this model"),
      index("index leaves the directory", R"({"weight_map":{"w":"../secret.safetensors"}})",
            "tensor 'w': file '../secret.safetensors' is not a plain name (no '/', '\\', '..')"),
      index("index names a missing file", R"({"weight_map":{"w":"b.safetensors"}})",
            "names files that do not exist: 'b.safetensors' | download the missing shards"),
      index("index names a missing tensor", R"({"weight_map":{"v":"model.safetensors"}})",
            "1 tensors are not in the file it names: 'v'"),
  };
}

// --- GGUF ---
struct Bytes {
  std::string out;
  Bytes& u32(std::uint32_t v) { return put(v); }
  Bytes& u64(std::uint64_t v) { return put(v); }
  Bytes& text(std::string_view s) {
    put<std::uint64_t>(s.size());
    out += s;
    return *this;
  }
  template <class T>
  Bytes& put(T v) {
    out.append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }
};
Bytes gguf_head(std::uint64_t tensors, std::uint64_t keys) { return Bytes{"GGUF"}.u32(3).u64(tensors).u64(keys); }
Row gguf(std::string input, std::string bytes, std::string message) {
  return {std::move(input), [bytes = std::move(bytes)](const TestDirectory& dir) { dir.write("m.gguf", bytes); },
          "m.gguf", "DIR/m.gguf: " + std::move(message)};
}
Row llama(std::string input, std::function<void(GgufContents&)> edit, std::string message) {
  return {std::move(input),
          [edit = std::move(edit)](const TestDirectory& dir) {
            GgufContents file = TinyLlama::gguf(GgufType::Q4_0);
            edit(file);
            write_gguf(dir / "m.gguf", file);
          },
          "m.gguf", "DIR/m.gguf: " + std::move(message)};
}
void set(GgufContents& file, std::string_view key, GgufValue value) {
  for (auto& [name, old] : file.metadata)
    if (name == key) old = value;
}

std::vector<Row> gguf_rows() {
  return {
      gguf("not a GGUF file", "PK\x03\x04 zip", "does not begin with GGUF (magic 04034b50)"),
      gguf("GGUF version 1", Bytes{"GGUF"}.u32(1).u64(0).u64(0).out, "GGUF version 1 (accepted: 2, 3)"),
      gguf("big-endian GGUF", Bytes{"GGUF"}.u32(0x03000000).u64(0).u64(0).out,
           "is a big-endian GGUF file (accepted: little-endian)"),
      gguf("GGUF of 12 bytes", Bytes{"GGUF"}.u32(3).u32(1).out, "ends at byte 12 inside the tensor count (truncated?)"),
      gguf("2^60 tensors", gguf_head(1ull << 60, 0).out, "1152921504606846976 tensors, the limit is 1000000"),
      gguf("key of 2^40 bytes", gguf_head(0, 1).u64(1ull << 40).out,
           "a metadata key claims 1099511627776 bytes, 0 remain in the file"),
      gguf("array of 2^50 strings", gguf_head(0, 1).text("k").u32(9).u32(8).u64(1ull << 50).out,
           "key 'k' claims 1125899906842624 items, 0 bytes remain in the file"),
      gguf("array of arrays", gguf_head(0, 1).text("k").u32(9).u32(9).u64(1).out,
           "key 'k' is an array of arrays (nesting limit 1)"),
      gguf("bool of value 2", gguf_head(0, 1).text("k").u32(7).put<std::uint8_t>(2).out,
           "key 'k' is a bool of value 2 (accepted: 0, 1)"),
      gguf("key twice", gguf_head(0, 2).text("k").u32(4).u32(1).text("k").u32(4).u32(1).out, "duplicate key 'k'"),
      gguf("alignment 12", gguf_head(0, 1).text("general.alignment").u32(4).u32(12).out,
           "general.alignment is 12 (accepted: multiples of 8 up to 2^30)"),
      gguf("five dimensions", gguf_head(1, 0).text("t").u32(5).u64(1).out, "tensor 't': rank 5 (accepted: 1..4)"),
      gguf("width unlike the block", gguf_head(1, 0).text("t").u32(1).u64(33).u32(2).u64(0).out,
           "tensor 't': width 33 is not a multiple of the Q4_0 block of 32"),
      gguf("type IQ4_NL", gguf_head(1, 0).text("t").u32(1).u64(32).u32(20).u64(0).out,
           "tensor 't': type IQ4_NL is not available in this version | accepted: F32, F16, BF16, Q4_0, Q4_1, Q5_0, "
           "Q5_1, Q8_0, Q2_K to Q6_K, MXFP4"),
      gguf("tensor outside the file", gguf_head(1, 0).text("t").u32(1).u64(32).u32(0).u64(0).out,
           "tensor 't': needs 128 bytes at offset 0, the file holds 0 bytes of data (truncated?)"),
      llama(
          "architecture qwen35", [](GgufContents& f) { set(f, "general.architecture", std::string("qwen35")); },
          "architecture 'qwen35' is not supported in GGUF (accepted: llama) | take the Hugging Face or MLX checkpoint "
          "of this model"),
      llama(
          "stray tensor",
          [](GgufContents& f) {
            f.tensors.push_back({"blk.7.attn_q.weight", GgufType::F32, {1}, std::vector<std::byte>(4)});
          },
          "tensor 'blk.7.attn_q.weight': does not belong to a llama model"),
      llama(
          "no heads", [](GgufContents& f) { set(f, "llama.attention.head_count", std::int64_t{0}); },
          "llama.attention.head_count is 0 (accepted: an integer 1..16777215)"),
      llama(
          "heads that do not divide", [](GgufContents& f) { set(f, "llama.attention.head_count_kv", std::int64_t{3}); },
          "llama.attention.head_count 4 is not a multiple of head_count_kv 3"),
      llama(
          "end token outside the vocabulary",
          [](GgufContents& f) { set(f, "tokenizer.ggml.eos_token_id", std::int64_t{40}); },
          "tokenizer.ggml.eos_token_id is 40 (accepted: an integer 0..39)"),
  };
}

std::vector<Row> all_rows() {
  std::vector<Row> rows = safetensors_rows();
  for (auto* more : {&directory_rows, &gguf_rows})
    for (Row& row : more()) rows.push_back(std::move(row));
  return rows;
}

TEST(HostileFiles, EachGetsItsMessage) {
  for (const Row& row : all_rows()) {
    TestDirectory dir;
    row.make(dir);
    std::string message = message_of([&] { open_model_source(row.open.empty() ? dir.path() : dir / row.open); });
    for (std::size_t at; (at = message.find(dir.path().string())) != std::string::npos;)
      message.replace(at, dir.path().string().size(), "DIR");
    const bool has_hint = row.message.find(" | ") != std::string::npos;
    EXPECT_EQ(message, has_hint ? row.message : fmt::format("{} | {}", row.message, kGetAnew)) << row.input;
  }
}

// A row of the page: the message is code, so only the bar needs care.
std::string page() {
  std::string out = fmt::format(
      "# Broken model files and what they get\n\nEvery check runs before a tensor byte is touched; each message names "
      "the file, the fact, the value and the limit, and a hint\n"
      "follows it: that of the table, else \"{}\".\n"
      "The program exits 3. `DIR` is the model's directory. This page is made and checked by\n"
      "`src/weights/hostile_files_test.cpp` (`OUTRIDER_UPDATE_DOCS=1 weights_test --gtest_filter=HostileFiles.*` "
      "rewrites it).\n\n"
      "| input | message |\n|---|---|\n",
      kGetAnew);
  for (const Row& row : all_rows()) {
    std::string message = row.message, hint;
    if (const auto at = message.find(" | "); at != std::string::npos) {
      hint = fmt::format("<br>hint: {}", message.substr(at + 3));
      message.resize(at);
    }
    out += fmt::format("| {} | `{}`{} |\n", row.input, message, hint);
  }
  return out;
}

TEST(HostileFiles, PageIsThisTable) {
  const std::filesystem::path path = OUTRIDER_SOURCE_DIR "/docs/hostile-files.md";
  if (std::getenv("OUTRIDER_UPDATE_DOCS") != nullptr) write_file_whole(path, page());
  EXPECT_EQ(read_text_file(path), page());
  EXPECT_GE(all_rows().size(), 30u);
}

}  // namespace
}  // namespace outrider
