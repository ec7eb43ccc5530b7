// Whole small files as text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace outrider {

// Largest config-like file: real ones are below 100 kB (quantization maps of hundreds of overrides).
inline constexpr std::uintmax_t kConfigBytes = 64u << 20;

// The content of a regular file, at most `limit_bytes`. Throws Error (data) if it is missing, not regular, unreadable
// or larger.
std::string read_text_file(const std::filesystem::path& path, std::uintmax_t limit_bytes = kConfigBytes);

}  // namespace outrider
