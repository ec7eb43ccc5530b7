#include "cli/toml.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "base/error.h"

namespace outrider {
namespace {

bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

std::string utf8_of(std::uint32_t code) {
  std::string out;
  if (code < 0x80) return out += static_cast<char>(code);
  const int tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr unsigned kLead[] = {0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kLead[tail] | (code >> (6 * tail)));
  for (int i = tail - 1; i >= 0; --i) out += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
  return out;
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  TomlFile read() {
    for (skip_blank_lines(); !at_end(); skip_blank_lines()) {
      if (peek() == '[')
        read_section();
      else
        read_entry();
      end_line();
    }
    return std::move(file_);
  }

 private:
  [[noreturn]] void fail(const std::string& fact) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    throw Error(ErrorKind::usage, fmt::format("{}: line {}: {}", origin_, line, fact),
                "correct that line; values are numbers, true, false, \"text\" or [lists]");
  }
  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\n' : text_[at_]; }
  bool starts(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  bool take(std::string_view word) {
    if (!starts(word)) return false;
    at_ += word.size();
    return true;
  }

  void skip_spaces() {
    while (!at_end() && (peek() == ' ' || peek() == '\t' || peek() == '\r')) ++at_;
  }
  void skip_comment() {
    if (peek() == '#')
      while (!at_end() && peek() != '\n') ++at_;
  }
  void skip_blank_lines() {
    while (!at_end()) {
      skip_spaces();
      skip_comment();
      if (at_end() || peek() != '\n') return;
      ++at_;
    }
  }
  void end_line() {
    skip_spaces();
    skip_comment();
    if (!at_end() && peek() != '\n') fail(fmt::format("\"{}\" is left over", rest_of_line()));
  }
  std::string_view rest_of_line() const {
    const std::string_view rest = text_.substr(at_, 40);
    return rest.substr(0, rest.find('\n'));
  }

  // a.b."c d"
  std::vector<std::string> read_key() {
    std::vector<std::string> parts;
    do {
      skip_spaces();
      if (peek() == '"' || peek() == '\'') {
        parts.push_back(read_string());
      } else {
        const std::size_t begin = at_;
        while (!at_end() && is_key_character(peek())) ++at_;
        if (at_ == begin) fail(fmt::format("a key is missing before \"{}\"", rest_of_line()));
        parts.emplace_back(text_.substr(begin, at_ - begin));
      }
      skip_spaces();
    } while (take("."));
    return parts;
  }

  void read_section() {
    if (starts("[[")) fail("arrays of tables are not supported");
    take("[");
    section_ = read_key();
    if (!take("]")) fail("a section lacks its ]");
    file_.sections.push_back(section_);
  }

  void read_entry() {
    TomlEntry entry;
    entry.line =
        static_cast<int>(1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n'));
    entry.section = section_;
    std::vector<std::string> key = read_key();
    entry.key = std::move(key.back());
    key.pop_back();
    if (!key.empty()) {
      entry.section.insert(entry.section.end(), key.begin(), key.end());
      file_.sections.push_back(entry.section);
    }
    if (!take("=")) fail(fmt::format("{} lacks its =", entry.key));
    skip_spaces();
    if (take("["))
      read_array(entry.values);
    else
      entry.values.push_back(read_scalar());
    file_.entries.push_back(std::move(entry));
  }

  void read_array(std::vector<std::string>& values) {
    skip_blank_lines();
    while (!take("]")) {
      values.push_back(read_scalar());
      skip_blank_lines();
      if (!take(",") && peek() != ']') fail("an array lacks a comma or its ]");
      skip_blank_lines();
      if (at_end()) fail("an array lacks its ]");
    }
  }

  std::string read_scalar() {
    if (peek() == '"' || peek() == '\'') return read_string();
    if (peek() == '{') fail("tables inside values are not supported");
    const std::size_t begin = at_;
    while (!at_end() && std::string_view(" \t\r\n,]#").find(peek()) == std::string_view::npos) ++at_;
    std::string word(text_.substr(begin, at_ - begin));
    if (word == "true" || word == "false") return word;
    word.erase(std::remove(word.begin(), word.end(), '_'), word.end());
    if (word.starts_with('+')) word.erase(0, 1);
    double number = 0;
    const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (word.empty() || fault == std::errc::invalid_argument || end != word.data() + word.size()) {
      at_ = begin;
      fail(fmt::format("\"{}\" is no number, true or false; a text needs quotes", rest_of_line()));
    }
    return word;
  }

  std::string read_string() {
    for (const std::string_view quotes : {"\"\"\"", "'''", "\"", "'"})
      if (take(quotes)) return read_string_up_to(quotes);
    fail("a string is missing");
  }

  std::string read_string_up_to(std::string_view quotes) {
    const bool escapes = quotes[0] == '"', many_lines = quotes.size() == 3;
    if (many_lines && !take("\r\n")) take("\n");
    std::string out;
    while (!take(quotes)) {
      if (at_end() || (peek() == '\n' && !many_lines)) fail("a string lacks its closing quote");
      if (escapes && peek() == '\\')
        out += read_escape(many_lines);
      else
        out += text_[at_++];
    }
    // Up to two quotes may stand right before the closing three.
    while (many_lines && peek() == quotes[0] && !at_end()) out += text_[at_++];
    return out;
  }

  std::string read_escape(bool many_lines) {
    ++at_;
    const char kind = peek();
    ++at_;
    constexpr std::string_view kKinds = "btnfre\"\\", kMeanings = "\b\t\n\f\r\x1b\"\\";
    if (const std::size_t which = kKinds.find(kind); which != std::string_view::npos)
      return std::string(1, kMeanings[which]);
    if (kind == 'u' || kind == 'U') return utf8_of(read_hex(kind == 'u' ? 4 : 8));
    --at_;
    if (!many_lines) fail("unknown escape in a string");
    skip_spaces();
    if (peek() != '\n') fail("unknown escape in a string");
    while (!at_end() && (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\n')) ++at_;
    return {};
  }

  std::uint32_t read_hex(std::size_t digits) {
    std::uint32_t code = 0;
    const std::string_view hex = text_.substr(std::min(at_, text_.size()), digits);
    const auto [end, fault] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    const bool good = hex.size() == digits && fault == std::errc() && end == hex.data() + hex.size();
    if (!good || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("bad \\u escape in a string");
    at_ += digits;
    return code;
  }

  std::string_view text_;
  const std::string& origin_;
  std::size_t at_ = 0;
  std::vector<std::string> section_;
  TomlFile file_;
};

}  // namespace

TomlFile read_toml(std::string_view text, const std::string& origin) { return Reader(text, origin).read(); }

}  // namespace outrider
