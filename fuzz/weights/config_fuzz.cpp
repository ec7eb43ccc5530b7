// Any bytes as config.json (and as generation_config.json): read, or Error (data).
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "weights/config.h"
#include "weights/json_strict.h"
#include "weights/quantization_map.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  set_log(LogLevel::off, LogFormat::text);
  const auto guarded = [](auto action) {
    try {
      action();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) std::abort();
    }
  };
  guarded([&] {
    const nlohmann::json config = parse_json({reinterpret_cast<const char*>(data), size}, "config.json");
    guarded([&] { QuantizationMap::from_config(config, "config.json").parameters("model.layers.0.mlp.up_proj"); });
    guarded([&] { stop_ids(config, config, {}, 1000); });
    const ConfigReader reader(config, "config.json");
    guarded([&] { reader.dimension("hidden_size"); });
    guarded([&] { reader.number("rope_theta", 1, 1e12, 1e4); });
    guarded([&] { reader.object("rope_scaling").text("rope_type", "default"); });
    guarded([&] { reader.texts("layer_types"); });
    guarded([&] { reader.numbers("rope_freq_divisors"); });
    guarded([&] { reader.flag("tie_word_embeddings", false); });
  });
  return 0;
}
