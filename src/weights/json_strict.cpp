#include "weights/json_strict.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "weights/file_error.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr const char* kCorrectJson = "correct it there, or get the file anew";

// Builds the document and refuses what the library's own builder would let pass.
class StrictBuilder final : public json::json_sax_t {
 public:
  StrictBuilder(std::string_view origin, int max_depth) : origin_(origin), max_depth_(max_depth) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    if (open_.back()->contains(value))
      throw file_error(origin_, fmt::format("duplicate key {}", in_quotes(value)), kCorrectJson);
    key_ = std::move(value);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token, const json::exception&) override {
    throw file_error(origin_, json_fault(position, token), kCorrectJson);
  }

  json take() { return std::move(root_); }

 private:
  json* slot(json&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    json& member = parent[key_];
    member = std::move(value);
    return &member;
  }
  bool put(json value) {
    slot(std::move(value));
    return true;
  }
  bool open(json&& container) {
    if (static_cast<int>(open_.size()) >= max_depth_)
      throw file_error(origin_, fmt::format("JSON nested deeper than the limit of {}", max_depth_), kCorrectJson);
    open_.push_back(slot(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view origin_;
  int max_depth_;
  json root_;
  // Pointers stay valid: a container grows only while it is the innermost open one.
  std::vector<json*> open_;
  std::string key_;
};

}  // namespace

std::string json_fault(std::size_t byte, std::string_view token) {
  constexpr std::size_t kShown = 24;
  if (token.empty()) return fmt::format("not valid JSON at byte {} (the text ends)", byte);
  return fmt::format("not valid JSON at byte {}, near {}", byte,
                     in_quotes(token.substr(token.size() - std::min(token.size(), kShown))));
}

json parse_json(std::string_view text, std::string_view origin, int max_depth) {
  // The library's lexer takes a NUL for the end of the text.
  if (const auto at = text.find('\0'); at != std::string_view::npos)
    throw file_error(origin, fmt::format("not valid JSON: NUL at byte {}", at), kCorrectJson);
  StrictBuilder builder(origin, max_depth);
  json::sax_parse(text, &builder);
  return builder.take();
}

json read_json_file(const std::filesystem::path& path, int max_depth) {
  return parse_json(read_text_file(path), path.string(), max_depth);
}

}  // namespace outrider
