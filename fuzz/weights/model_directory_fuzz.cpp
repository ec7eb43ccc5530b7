// Any bytes as the weights of a model directory whose config names every quantization mode: opened, every matrix
// decoded and packed, or Error (data). The inputs reach what safetensors_fuzz cannot: scales, biases, shapes that do
// not fit, scale bytes that are no number.
#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "model_bytes.h"

namespace {

// Made once; its weights are a link to the bytes of the run.
const std::filesystem::path& directory() {
  static const std::filesystem::path path = [] {
    const auto made = std::filesystem::temp_directory_path() / ("outrider-fuzz-" + std::to_string(getpid()));
    std::filesystem::create_directories(made);
    std::ofstream(made / "config.json") << R"({"quantization": {"group_size": 32, "bits": 4, "a.3": {"bits": 3},
        "a.6": {"bits": 6, "group_size": 64}, "mx4": {"mode": "mxfp4"}, "nv4": {"mode": "nvfp4"},
        "mx8": {"mode": "mxfp8"}}})";
    std::atexit([] { std::filesystem::remove_all(directory()); });
    return made;
  }();
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  set_log(LogLevel::off, LogFormat::text);
  const MemoryFile file(data, size);
  std::filesystem::remove(directory() / "model.safetensors");
  std::filesystem::create_symlink(file.path(), directory() / "model.safetensors");
  accept_data_errors([&] { load_all(*open_safetensors_model(directory(), {})); });
  return 0;
}
