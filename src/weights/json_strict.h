// JSON of untrusted files: UTF-8 only, no duplicate keys, bounded nesting, no NaN or infinity. Errors (data) name the
// file, the fact and the byte.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/text_file.h"

namespace outrider {

// Nesting of config files: real ones stay below 8.
inline constexpr int kConfigDepth = 32;

// The document; `origin` is the file name for messages. Throws Error (data).
nlohmann::json parse_json(std::string_view text, std::string_view origin, int max_depth = kConfigDepth);

// Reads and parses a file. Throws Error (data) if missing, larger than kConfigBytes, or malformed.
nlohmann::json read_json_file(const std::filesystem::path& path, int max_depth = kConfigDepth);

// "not valid JSON at byte 6, near 'tok'": the words of every JSON fault; `token` is what the parser stumbled over.
std::string json_fault(std::size_t byte, std::string_view token);

}  // namespace outrider
