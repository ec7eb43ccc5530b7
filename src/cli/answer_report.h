// What is told of an answer beside its text: the JSON document, the one line of speeds, the table of --stats.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace outrider {

// One finished answer, collected from its events.
struct Answered {
  std::string text;
  std::vector<std::int32_t> ids;
  std::vector<TokenLogprob> logprobs;
  Event last;  // the finished event
  double tokenize_ms = 0;

  void take(const Event& event);
};

nlohmann::ordered_json timings_json(const Answered& answer);
// How the model was loaded; times in ms, the text beside the weights.
nlohmann::ordered_json load_json(const LoadTimes& load);
nlohmann::ordered_json logprobs_json(std::span<const TokenLogprob> logprobs);

// Reads of one decode step, and what the machine can read: measured now, within the plan's unused memory, so that the
// process stays below its plan. Not measured where less than 32 MiB of it is left, and told so.
struct Bandwidth {
  double decode_gb_per_s = 0;
  double machine_gb_per_s = 0;
  bool no_room = false;
};
Bandwidth measure_bandwidth(const Engine& engine, const Answered& answer, int threads);

// The peak memory of the process without what measure_bandwidth() took: asked before and after each measurement.
class EnginePeak {
 public:
  std::uint64_t bytes();
  void measured();  // a measurement has just ended

 private:
  std::uint64_t kept_ = 0, with_measurement_ = 0;
};

// "prompt 12 tokens, 345 tokens/s; decode 64 tokens, 98.7 tokens/s, 8.21 GB/s, 85 % of 9.66 GB/s; peak memory 182 MiB"
std::string speed_line(const Answered& answer, const Bandwidth& bandwidth, std::uint64_t peak_bytes);
// The lines of --stats: times, memory by part against the plan.
std::string stats_table(const Engine& engine, const Answered& answer);

}  // namespace outrider
