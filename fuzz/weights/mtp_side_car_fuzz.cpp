// Any bytes as the MTP head beside a Qwen3.5 trunk, in each of the places one may lie: found and every tensor of it
// read, or Error (data). Byte 0 chooses the place, bytes 1 and 2 say how many of the rest are the config.json of a
// directory of its own; what follows is its weights.
#include <array>

#include "base/log.h"
#include "model_bytes.h"
#include "weights/test_qwen3_5.h"

namespace {

using namespace outrider;
namespace fs = std::filesystem;

// The usual places in the trunk's directory, then those that --mtp names: a directory of its own, and a file.
constexpr std::array kPlaces{"trunk/optiq/mtp.safetensors", "trunk/mtp.safetensors", "trunk/mtp/weights.safetensors",
                             "trunk/model-mtp.safetensors", "own/model.safetensors", "file.safetensors"};
constexpr std::size_t kDirectory = 4, kFile = 5;

// Made once; the head's files are links to the bytes of the run.
const TestDirectory& made() {
  static const TestDirectory directory;
  static const fs::path trunk = write_qwen(directory / "trunk", TinyQwen::trunk(), {{"format", "pt"}});
  for (const char* place : kPlaces) fs::create_directories((directory / place).parent_path());
  return directory;
}

void read_head(const fs::path& trunk, const SourceOptions& options) {
  const auto source = open_model_source(trunk, options);
  if (source->facts()->mtp.state != HeadState::ready) return;
  for (const auto& [name, tensor] : TinyQwen::head()) {
    if (!source->has(name)) continue;
    accept_data_errors([&] {
      if (tensor.shape.size() == 1)
        source->load_vector(name, tensor.shape[0]);
      else
        source->load_matrix(name.substr(0, name.size() - 7), -1, -1, Precision::packed);
    });
  }
  source->mtp_identity();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  set_log(LogLevel::off, LogFormat::text);
  if (size < 3) return 0;
  const std::size_t which = data[0] % kPlaces.size();
  const std::size_t config_bytes = std::min<std::size_t>(data[1] + 256u * data[2], size - 3);
  const MemoryFile config(data + 3, config_bytes), weights(data + 3 + config_bytes, size - 3 - config_bytes);
  for (const char* place : kPlaces) fs::remove(made() / place);
  fs::remove(made() / "own/config.json");
  fs::create_symlink(weights.path(), made() / kPlaces[which]);
  if (which == kDirectory) fs::create_symlink(config.path(), made() / "own/config.json");
  SourceOptions options;
  if (which >= kDirectory) options.mtp_path = made() / (which == kFile ? kPlaces[kFile] : "own");
  for (const MtpUse use : {MtpUse::automatic, MtpUse::on}) {
    options.mtp = use;
    accept_data_errors([&] { read_head(made() / "trunk", options); });
  }
  return 0;
}
