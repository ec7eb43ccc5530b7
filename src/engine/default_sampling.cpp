#include "engine/default_sampling.h"

#include <nlohmann/json.hpp>

#include "base/log.h"

namespace outrider {
namespace {

// A number in [low, high], or the value there was.
template <class T>
void take(const nlohmann::json& generation, const char* key, double low, double high, T& value) {
  const auto entry = generation.find(key);
  if (entry == generation.end() || entry->is_null()) return;
  const bool good = entry->is_number() && entry->get<double>() >= low && entry->get<double>() <= high;
  if (good)
    value = entry->get<T>();
  else
    log(LogLevel::warning, "generation_config.json: {} is {} (accepted: {} to {}); ignored", key, entry->dump(), low,
        high);
}

}  // namespace

SamplingParams default_sampling(const nlohmann::json& generation) {
  SamplingParams p;
  if (!generation.is_object()) return p;
  const auto do_sample = generation.find("do_sample");
  const bool decided = do_sample != generation.end() && do_sample->is_boolean();
  if (decided && do_sample->get<bool>()) p.temperature = 1;
  take(generation, "temperature", 0, 5, p.temperature);
  if (decided && !do_sample->get<bool>()) p.temperature = 0;
  take(generation, "top_p", 0, 1, p.top_p);
  take(generation, "min_p", 0, 1, p.min_p);
  take(generation, "top_k", -1, 1e9, p.top_k);
  take(generation, "repetition_penalty", 0, 10, p.repetition_penalty);
  return p;
}

}  // namespace outrider
