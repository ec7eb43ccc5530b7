// Text to token ids and back, by the `tokenizers` crate behind our C ABI (rust/include/outrider_text.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

// Whether the tokenizer's own post-processor (BOS and the like) adds tokens.
enum class AddSpecial { no, yes };
// Whether special tokens spelled out in the text become their ids, or are encoded as plain text.
enum class ParseSpecial { no, yes };
// Whether special tokens appear in decoded text.
enum class SkipSpecial { no, yes };

// An immutable tokenizer; safe to use from several threads. Move-only: owns the handle of the C ABI.
// Loading throws Error (data) that names the file and what is wrong with it.
class Tokenizer {
 public:
  // A tokenizer.json file's text.
  static Tokenizer from_json(std::string_view tokenizer_json, std::string_view origin);
  static Tokenizer from_file(const std::filesystem::path& tokenizer_json);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // `text` must be UTF-8, else Error (usage). Same ids as the Python package `tokenizers`.
  std::vector<std::int32_t> encode(std::string_view text, AddSpecial add_special, ParseSpecial parse_special) const;
  // Ids out of range: Error (usage). Incomplete UTF-8 at the end becomes U+FFFD; streams use TextStream instead.
  std::string decode(std::span<const std::int32_t> ids, SkipSpecial skip_special) const;
  // The bytes this id stands for when it follows other text (byte-level and sentencepiece spellings undone).
  std::string token_bytes(std::int32_t id) const;
  // The token's spelling in the vocabulary; empty for ids without one.
  std::string piece(std::int32_t id) const;
  // -1 if the spelling is not in the vocabulary.
  std::int32_t id_of(std::string_view piece) const;
  bool is_special(std::int32_t id) const;
  // Number of ids with added tokens: one more than the largest id.
  std::int32_t size() const;
  // Bytes the handle holds on the heap, measured by the allocator of the Rust library (memory plan part "text").
  std::size_t heap_bytes() const;

 private:
  struct Handle;
  explicit Tokenizer(std::unique_ptr<Handle> handle);
  std::unique_ptr<Handle> handle_;
  friend class TextStream;
};

}  // namespace outrider
