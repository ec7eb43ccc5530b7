// Any bytes as a GGUF model: opened, mapped to a llama, every matrix decoded and packed, or Error (data).
#include "model_bytes.h"
#include "weights/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  accept_data_errors([&] {
    parse_gguf({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
    const MemoryFile file(data, size);
    load_all(*open_gguf_model(file.path(), {}));
  });
  return 0;
}
