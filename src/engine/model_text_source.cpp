#include "engine/model_text_source.h"

#include <limits>

#include "base/error.h"

namespace outrider {
namespace {

bool is_gguf(const std::filesystem::path& model) { return std::filesystem::is_regular_file(model); }

std::filesystem::path tokenizer_file(const std::filesystem::path& directory) { return directory / "tokenizer.json"; }

// Heap of a loaded tokenizer. SmolLM2 (byte-level BPE, 49,152 tokens) measures 6.2 MB: 4.0 bytes per byte of its
// tokenizer.json, 126 bytes per token of its GGUF file; Llama 2's file without white space 6.2 a byte. Half as much
// again for families with longer spellings.
constexpr std::uint64_t kHeapPerJsonByte = 7;
constexpr std::uint64_t kHeapPerToken = 190;

}  // namespace

GgufTokenizer gguf_tokenizer_metadata(const GgufFile& file) {
  constexpr std::int64_t kMostId = std::numeric_limits<std::int32_t>::max();
  GgufTokenizer out;
  out.model = file.text("tokenizer.ggml.model").value_or("");
  out.pre = file.text("tokenizer.ggml.pre").value_or("");
  if (const auto* tokens = file.texts("tokenizer.ggml.tokens")) out.tokens = *tokens;
  if (const auto* merges = file.texts("tokenizer.ggml.merges")) out.merges = *merges;
  if (const auto* scores = file.numbers("tokenizer.ggml.scores")) out.scores.assign(scores->begin(), scores->end());
  if (const auto* types = file.integers("tokenizer.ggml.token_type"))
    out.token_types.assign(types->begin(), types->end());
  const auto id = [&](std::string_view name) {
    return file.integer(fmt::format("tokenizer.ggml.{}_token_id", name), 0, kMostId);
  };
  out.bos_token_id = id("bos");
  out.eos_token_id = id("eos");
  out.eot_token_id = id("eot");
  out.unknown_token_id = id("unknown");
  out.padding_token_id = id("padding");
  out.add_bos_token = file.flag("tokenizer.ggml.add_bos_token");
  out.add_eos_token = file.flag("tokenizer.ggml.add_eos_token");
  out.add_space_prefix = file.flag("tokenizer.ggml.add_space_prefix");
  out.chat_template = file.text("tokenizer.chat_template").value_or("");
  return out;
}

std::optional<ModelText> load_text_of(const std::filesystem::path& model) {
  if (!is_gguf(model)) {
    if (!std::filesystem::exists(tokenizer_file(model))) return std::nullopt;
    return load_model_text(model);
  }
  const GgufFile file(model);
  GgufTokenizer metadata = gguf_tokenizer_metadata(file);
  if (metadata.tokens.empty()) return std::nullopt;
  return model_text_from_files(tokenizer_files_from_gguf(metadata), model.string());
}

std::vector<std::int32_t> newline_ids(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < tokenizer.size(); ++id) {
    const std::string bytes = tokenizer.token_bytes(id);
    if (!bytes.empty() && bytes.find_first_not_of("\r\n") == std::string::npos) ids.push_back(id);
  }
  return ids;
}

std::uint64_t estimated_text_bytes(const std::filesystem::path& model) {
  if (!is_gguf(model)) {
    std::error_code missing;
    const std::uintmax_t bytes = std::filesystem::file_size(tokenizer_file(model), missing);
    return missing ? 0 : bytes * kHeapPerJsonByte;
  }
  const GgufFile file(model);
  const auto* tokens = file.texts("tokenizer.ggml.tokens");
  return tokens == nullptr ? 0 : tokens->size() * kHeapPerToken;
}

}  // namespace outrider
