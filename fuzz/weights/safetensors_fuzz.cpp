// Any bytes as a safetensors file: a header whose tensors lie inside the file and tile it, or Error (data).
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const auto header = outrider::parse_safetensors(file, "fuzz");
    std::uint64_t total = 0;
    for (const auto& tensor : header.tensors) {
      if (tensor.offset > size || tensor.bytes > size - tensor.offset) std::abort();
      total += tensor.bytes;
    }
    if (total > size) std::abort();
  } catch (const outrider::Error& error) {
    if (error.kind() != outrider::ErrorKind::data) std::abort();
  }
  return 0;
}
