// Any bytes as outrider.json beside a whole Qwen3.5 checkpoint with its MTP head: opened and read, or Error (data).
#include "base/log.h"
#include "model_bytes.h"
#include "weights/test_qwen3_5.h"

namespace {

using namespace outrider;

// Made once; its record is a link to the bytes of the run.
const std::filesystem::path& directory() {
  static const TestDirectory made;
  static const std::filesystem::path path = write_qwen(made / "m", TinyQwen::whole(), {{"format", "pt"}});
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  set_log(LogLevel::off, LogFormat::text);
  const MemoryFile file(data, size);
  std::filesystem::remove(directory() / "outrider.json");
  std::filesystem::create_symlink(file.path(), directory() / "outrider.json");
  for (const MtpUse use : {MtpUse::automatic, MtpUse::on})
    accept_data_errors([&] {
      SourceOptions options;
      options.mtp = use;
      const auto source = open_model_source(directory(), options);
      const bool has_head = source->facts()->mtp.state == HeadState::ready;
      if (use == MtpUse::on && !has_head) std::abort();
      source->load_vector("model.norm.weight", TinyQwen::kE);
      if (has_head) source->load_vector("mtp.norm.weight", TinyQwen::kE);
    });
  return 0;
}
