// Private to src/text: calls of the C ABI as C++ sees them. Only this room includes outrider_text.h.
#pragma once

#include <outrider_text.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace outrider::rust {

// Bytes handed over by the library; freed on destruction, so that nothing leaks when a copy of them throws.
class Bytes {
 public:
  Bytes() = default;
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() { outrider_bytes_free(bytes_); }
  outrider_bytes* out() { return &bytes_; }
  std::string text() const {
    return bytes_.size == 0 ? std::string() : std::string(reinterpret_cast<const char*>(bytes_.data), bytes_.size);
  }

 private:
  outrider_bytes bytes_{nullptr, 0};
};

inline const std::uint8_t* data(std::string_view text) { return reinterpret_cast<const std::uint8_t*>(text.data()); }

// Throws for every code but OK: BAD_DATA as Error (data), the others as Error (usage), faults of the library as
// Error (runtime). The message is "<subject>: <what the library says>".
inline void check(std::int32_t code, const Bytes& error, std::string_view subject, std::string_view hint = {}) {
  if (code == OUTRIDER_TEXT_OK) return;
  const ErrorKind kind = code == OUTRIDER_TEXT_BAD_DATA ? ErrorKind::data
                         : code == OUTRIDER_TEXT_PANIC  ? ErrorKind::runtime
                                                        : ErrorKind::usage;
  throw Error(kind, fmt::format("{}: {}", subject, error.text()), std::string(hint));
}

}  // namespace outrider::rust
