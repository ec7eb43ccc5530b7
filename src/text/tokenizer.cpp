#include "text/tokenizer.h"

#include <utility>

#include "base/text_file.h"
#include "text/tokenizer_handle.h"

namespace outrider {

namespace {

// Ten times the largest tokenizer.json known (Gemma 3: 33 MB).
constexpr std::size_t kMaxTokenizerFileBytes = std::size_t{320} << 20;

// Ids handed over by the library.
class Ids {
 public:
  Ids() = default;
  Ids(const Ids&) = delete;
  Ids& operator=(const Ids&) = delete;
  ~Ids() { outrider_ids_free(ids_); }
  outrider_ids* out() { return &ids_; }
  std::vector<std::int32_t> vector() const {
    return ids_.size == 0 ? std::vector<std::int32_t>() : std::vector<std::int32_t>(ids_.data, ids_.data + ids_.size);
  }

 private:
  outrider_ids ids_{nullptr, 0};
};

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json, std::string_view origin) {
  rust::Bytes error;
  outrider_tokenizer* made = nullptr;
  const std::int32_t code =
      outrider_tokenizer_new(rust::data(tokenizer_json), tokenizer_json.size(), &made, error.out());
  // Whatever goes wrong inside the library while it reads a file is that file's fault.
  rust::check(code == OUTRIDER_TEXT_OK ? code : OUTRIDER_TEXT_BAD_DATA, error, origin,
              "the file must be a tokenizer.json as the Python package `tokenizers` 0.23 reads it");
  auto handle = std::make_unique<Handle>();
  handle->tokenizer.reset(made);
  handle->facts = outrider_tokenizer_info(made);
  return Tokenizer(std::move(handle));
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& tokenizer_json) {
  return from_json(read_text_file(tokenizer_json, kMaxTokenizerFileBytes), tokenizer_json.string());
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, AddSpecial add_special,
                                            ParseSpecial parse_special) const {
  rust::Bytes error;
  Ids ids;
  rust::check(
      outrider_tokenizer_encode(handle_->tokenizer.get(), rust::data(text), text.size(), add_special == AddSpecial::yes,
                                parse_special == ParseSpecial::yes, ids.out(), error.out()),
      error, "cannot tokenize");
  return ids.vector();
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, SkipSpecial skip_special) const {
  rust::Bytes error;
  rust::Bytes text;
  rust::check(outrider_tokenizer_decode(handle_->tokenizer.get(), ids.data(), ids.size(),
                                        skip_special == SkipSpecial::yes, text.out(), error.out()),
              error, "cannot decode");
  return text.text();
}

std::string Tokenizer::token_bytes(std::int32_t id) const {
  rust::Bytes error;
  rust::Bytes bytes;
  rust::check(outrider_tokenizer_token_bytes(handle_->tokenizer.get(), id, bytes.out(), error.out()), error,
              "cannot decode");
  return bytes.text();
}

std::string Tokenizer::piece(std::int32_t id) const {
  rust::Bytes error;
  rust::Bytes piece;
  rust::check(outrider_tokenizer_piece(handle_->tokenizer.get(), id, piece.out(), error.out()), error, "no such token");
  return piece.text();
}

std::int32_t Tokenizer::id_of(std::string_view piece) const {
  return outrider_tokenizer_id_of(handle_->tokenizer.get(), rust::data(piece), piece.size());
}

bool Tokenizer::is_special(std::int32_t id) const {
  return outrider_tokenizer_is_special(handle_->tokenizer.get(), id) != 0;
}

std::int32_t Tokenizer::size() const { return handle_->facts.size; }

std::size_t Tokenizer::heap_bytes() const { return handle_->facts.heap_bytes; }

}  // namespace outrider
