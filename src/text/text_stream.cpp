#include "text/text_stream.h"

#include <array>
#include <utility>

#include "text/tokenizer_handle.h"
#include "text/utf8.h"

namespace outrider {

namespace {

// `decoder_family` and the kinds of parts of outrider_text.h.
enum class Family : std::int32_t { other = 0, byte_level = 1, byte_fallback = 2 };
enum class Part : std::int32_t { nothing = 0, text = 1, bytes = 2, byte = 3 };

std::string utf8_of(std::uint32_t code_point) {
  std::string out;
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0 | (code_point >> 6));
    out += static_cast<char>(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0 | (code_point >> 12));
    out += static_cast<char>(0x80 | ((code_point >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code_point & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code_point >> 18));
    out += static_cast<char>(0x80 | ((code_point >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code_point >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code_point & 0x3F));
  }
  return out;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, SkipSpecial skip_special)
    : tokenizer_(&tokenizer),
      skip_special_(skip_special),
      strip_(utf8_of(tokenizer.handle_->facts.strip_char)),
      strips_left_(tokenizer.handle_->facts.strip_count) {}

std::string TextStream::push(std::int32_t id) {
  rust::Bytes error;
  rust::Bytes bytes;
  std::int32_t kind = 0;
  rust::check(outrider_tokenizer_part(tokenizer_->handle_->tokenizer.get(), id, skip_special_ == SkipSpecial::yes,
                                      &kind, bytes.out(), error.out()),
              error, "cannot decode");
  switch (Part{kind}) {
    case Part::nothing:
      return {};
    case Part::bytes:
      pending_ += bytes.text();
      return take_utf8(pending_);
    case Part::byte:
      pending_ += bytes.text();
      return {};
    case Part::text:
      break;
  }
  if (Family{tokenizer_->handle_->facts.decoder_family} == Family::other) return beside_anchor(id);
  return stripped(take_byte_run() + bytes.text());
}

std::string TextStream::finish() {
  if (Family{tokenizer_->handle_->facts.decoder_family} == Family::byte_level) {
    // An unfinished character is one invalid part.
    const bool unfinished = !std::exchange(pending_, {}).empty();
    return unfinished ? std::string(kReplacementCharacter) : std::string();
  }
  return stripped(take_byte_run());
}

// A run of byte tokens is its text if it is UTF-8, else one U+FFFD per byte.
std::string TextStream::take_byte_run() {
  std::string run = std::exchange(pending_, {});
  if (utf8_fault(run) == std::string::npos) return run;
  std::string replaced;
  for (std::size_t i = 0; i < run.size(); ++i) replaced += kReplacementCharacter;
  return replaced;
}

std::string TextStream::stripped(std::string text) {
  while (strips_left_ > 0 && !text.empty()) {
    if (!text.starts_with(strip_)) {
      strips_left_ = 0;
      break;
    }
    text.erase(0, strip_.size());
    --strips_left_;
  }
  return text;
}

// Decoders of unknown kind look at neighbours: the id is decoded after the one before it.
std::string TextStream::beside_anchor(std::int32_t id) {
  const std::int32_t previous = std::exchange(anchor_, id);
  if (previous < 0) return tokenizer_->decode(std::array{id}, skip_special_);
  const std::string before = tokenizer_->decode(std::array{previous}, skip_special_);
  const std::string both = tokenizer_->decode(std::array{previous, id}, skip_special_);
  return both.starts_with(before) ? both.substr(before.size()) : both;
}

}  // namespace outrider
