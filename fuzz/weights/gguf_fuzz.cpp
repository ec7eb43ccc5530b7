// Any bytes as a GGUF model: opened, mapped to a llama, every matrix decoded and packed, or Error (data).
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "weights/gguf.h"
#include "weights/stored_model.h"

namespace {

// The bytes as a file with a path of its own.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : descriptor_(memfd_create("fuzz", 0)) {
    if (descriptor_ < 0 || write(descriptor_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~MemoryFile() { close(descriptor_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

void load_all(outrider::StoredModel& model) {
  for (const auto& tensor : model.tensors()) {
    try {
      if (tensor.shape.size() == 2 && tensor.name.ends_with(".weight"))
        model.load_matrix(tensor.name.substr(0, tensor.name.size() - 7), -1, -1, outrider::Precision::packed);
      else
        model.values(tensor.name);
    } catch (const outrider::Error& error) {
      if (error.kind() != outrider::ErrorKind::data) std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    outrider::parse_gguf({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
    const MemoryFile file(data, size);
    load_all(*outrider::open_gguf_model(file.path(), {}));
  } catch (const outrider::Error& error) {
    if (error.kind() != outrider::ErrorKind::data) std::abort();
  }
  return 0;
}
