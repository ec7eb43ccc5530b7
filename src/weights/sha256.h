// SHA-256 over what is given piece by piece.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace outrider {

using Sha256Digest = std::array<std::uint8_t, 32>;

// Two hexadecimal digits a byte.
std::string hex(std::span<const std::uint8_t> bytes);

// Error (runtime) from any call when the library cannot compute it.
class Sha256 {
 public:
  Sha256();
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  Sha256Digest finish();  // once, at the end

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace outrider
