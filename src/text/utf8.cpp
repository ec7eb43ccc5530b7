#include "text/utf8.h"

namespace outrider {

namespace {

struct Lead {
  int continuation_bytes;
  unsigned char second_low, second_high;  // allowed range of the second byte: shuts out overlong forms and surrogates
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {0, 0, 0};
  if (byte < 0xC2) return {-1, 0, 0};
  if (byte < 0xE0) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte < 0xF0) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte < 0xF4) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {-1, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  if (lead.continuation_bytes < 0) return {Utf8Kind::invalid, 1};
  for (int i = 1; i <= lead.continuation_bytes; ++i) {
    if (static_cast<std::size_t>(i) == text.size()) return {Utf8Kind::incomplete, text.size()};
    const auto byte = static_cast<unsigned char>(text[static_cast<std::size_t>(i)]);
    const unsigned char low = i == 1 ? lead.second_low : 0x80;
    const unsigned char high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {Utf8Kind::invalid, static_cast<std::size_t>(i)};
  }
  return {Utf8Kind::valid, static_cast<std::size_t>(lead.continuation_bytes) + 1};
}

std::size_t utf8_fault(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Kind::valid) return at;
    at += step.size;
  }
  return std::string_view::npos;
}

std::string take_utf8(std::string& bytes) {
  std::string text;
  std::size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Step step = utf8_step(std::string_view(bytes).substr(at));
    if (step.kind == Utf8Kind::incomplete) break;
    if (step.kind == Utf8Kind::valid) {
      text.append(bytes, at, step.size);
    } else {
      text.append(kReplacementCharacter);
    }
    at += step.size;
  }
  bytes.erase(0, at);
  return text;
}

}  // namespace outrider
