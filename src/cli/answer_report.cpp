#include "cli/answer_report.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "cli/output.h"
#include "engine/machine.h"

namespace outrider {

void Answered::take(const Event& event) {
  text += event.text;
  ids.insert(ids.end(), event.ids.begin(), event.ids.end());
  logprobs.insert(logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  if (event.kind == Event::Kind::finished) last = event;
}

nlohmann::ordered_json timings_json(const Answered& answer) {
  const Timings& t = answer.last.timings;
  return {{"queue_ms", t.queue_ms},
          {"tokenize_ms", answer.tokenize_ms},
          {"cache_n", t.cache_n},
          {"prompt_n", t.prompt_n},
          {"prompt_ms", t.prompt_ms},
          {"prompt_per_second", t.prompt_per_second},
          {"ttft_ms", t.ttft_ms},
          {"predicted_n", t.predicted_n},
          {"predicted_ms", t.predicted_ms},
          {"predicted_per_second", t.predicted_per_second},
          {"draft_n", t.draft_n},
          {"draft_n_accepted", t.draft_n_accepted},
          {"draft_ms", t.draft_ms},
          {"verify_ms", t.verify_ms},
          {"commit_ms", t.commit_ms},
          {"rounds", t.rounds},
          {"accepted_per_depth", std::span(t.accepted_per_depth).first(t.depths)}};
}

nlohmann::ordered_json load_json(const LoadTimes& load) {
  return {{"load_ms", load.load_ms},
          {"weights_ms", load.weights_ms},
          {"weights", name_of(load.weights)},
          {"text_ms", load.text_ms}};
}

nlohmann::ordered_json logprobs_json(std::span<const TokenLogprob> logprobs) {
  // At most 7 significant digits (serving.md 2.4).
  const auto rounded = [](double value) { return std::stod(fmt::format("{:.7g}", value)); };
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const TokenLogprob& token : logprobs) {
    nlohmann::ordered_json top = nlohmann::ordered_json::array();
    for (const auto& [id, logprob] : token.top) top.push_back({{"id", id}, {"logprob", rounded(logprob)}});
    list.push_back({{"id", token.id}, {"logprob", rounded(token.logprob)}, {"top_logprobs", std::move(top)}});
  }
  return list;
}

namespace {

// Memory of the process now (the second field of statm, in pages); 0 where the system does not tell.
std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  return file >> size >> resident ? resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace

std::uint64_t EnginePeak::bytes() {
  const std::uint64_t peak = process_peak_bytes();
  // A peak that a measurement set says nothing of the engine; what is resident now does.
  kept_ = std::max(kept_, peak > with_measurement_ ? peak : resident_bytes());
  return kept_;
}

void EnginePeak::measured() { with_measurement_ = process_peak_bytes(); }

Bandwidth measure_bandwidth(const Engine& engine, const Answered& answer, int threads) {
  constexpr std::uint64_t kMargin = std::uint64_t{8} << 20;  // threads and the allocator
  const std::uint64_t planned = engine.plan().planned_bytes;
  const std::uint64_t taken = resident_bytes() + kMargin;
  const std::uint64_t unused = planned > taken ? planned - taken : 0;
  Bandwidth bandwidth;
  bandwidth.no_room = unused < kLeastProbeBytes;
  if (bandwidth.no_room) return bandwidth;
  bandwidth.machine_gb_per_s =
      measure_read_bandwidth(threads, static_cast<std::size_t>(std::min<std::uint64_t>(unused, probe_bytes())));
  // Every decode step reads the weights once and the row's KV; the mean context lies half way through the answer.
  const double context =
      static_cast<double>(answer.last.usage.prompt_tokens) + static_cast<double>(answer.ids.size()) / 2;
  const double bytes = static_cast<double>(engine.facts().step_weight_bytes) +
                       context * static_cast<double>(engine.facts().kv_bytes_per_token);
  // Of the tokens after the first, those that were drafts cost no step of their own.
  const Timings& t = answer.last.timings;
  const auto tokens = static_cast<double>(t.predicted_n - 1), drafts = static_cast<double>(t.draft_n_accepted);
  const double steps_per_token = tokens > 0 ? (tokens - drafts) / tokens : 0;
  bandwidth.decode_gb_per_s = bytes * t.predicted_per_second * steps_per_token / 1e9;
  return bandwidth;
}

std::string speed_line(const Answered& answer, const Bandwidth& bandwidth, std::uint64_t peak_bytes) {
  const Timings& t = answer.last.timings;
  std::string line = fmt::format("prompt {} tokens, {:.1f} tokens/s; decode {} tokens", t.prompt_n, t.prompt_per_second,
                                 t.predicted_n);
  if (t.predicted_per_second > 0 && bandwidth.machine_gb_per_s > 0)
    line += fmt::format(", {:.1f} tokens/s, {:.2f} GB/s, {:.0f} % of {:.2f} GB/s", t.predicted_per_second,
                        bandwidth.decode_gb_per_s, 100 * bandwidth.decode_gb_per_s / bandwidth.machine_gb_per_s,
                        bandwidth.machine_gb_per_s);
  else if (t.predicted_per_second > 0)
    line += fmt::format(", {:.1f} tokens/s", t.predicted_per_second);
  if (bandwidth.no_room) line += ", read bandwidth not measured: the memory plan leaves no room";
  return line + fmt::format("; peak memory {}", human_bytes(peak_bytes));
}

namespace {

std::string head_line(const Engine& engine) {
  const Engine::DraftHead head = engine.draft_head();
  const std::int64_t some = engine.facts().draft_vocabulary, all = engine.facts().vocab;
  std::string line;
  switch (head.state) {
    case Engine::DraftHead::State::none:
      return "none";
    case Engine::DraftHead::State::given_up:
      line = "given up: it was never right";
      break;
    case Engine::DraftHead::State::in_use:
      line = fmt::format("in use, drafts from {}",
                         some > 0 ? fmt::format("{} or all {} tokens", some, all) : fmt::format("all {} tokens", all));
  }
  if (head.rows_without_head > 0) line += fmt::format("; {} without it", counted(head.rows_without_head, "row"));
  return line;
}

}  // namespace

std::string stats_table(const Engine& engine, const Answered& answer) {
  const Timings& t = answer.last.timings;
  std::string out;
  const auto row = [&](std::string_view name, const std::string& value) {
    out += fmt::format("  {:<22} {}\n", name, value);
  };
  row("model", fmt::format("{}, {} parameters, {}", engine.facts().architecture, engine.facts().parameters,
                           engine.facts().path));
  const LoadTimes& load = engine.load_times();
  row("load", fmt::format("{:.2f} ms", load.load_ms));
  row("weights", fmt::format("{:.2f} ms, {}", load.weights_ms, name_of(load.weights)));
  row("text, beside them", engine.facts().has_text ? fmt::format("{:.2f} ms", load.text_ms) : std::string("none"));
  row("finish", std::string(name_of(answer.last.finish)));
  row("seed", std::to_string(answer.last.seed));
  row("tokenize", fmt::format("{:.2f} ms", answer.tokenize_ms));
  row("prompt", fmt::format("{} tokens, {:.2f} ms; {} cached", t.prompt_n, t.prompt_ms, t.cache_n));
  row("first token after", fmt::format("{:.2f} ms", t.ttft_ms));
  row("decode", fmt::format("{} tokens, {:.2f} ms", t.predicted_n, t.predicted_ms));
  row("drafts", t.draft_n == 0
                    ? std::string("none")
                    : fmt::format("{} of {} accepted ({:.2f} by place), {:.2f} tokens a round", t.draft_n_accepted,
                                  t.draft_n, fmt::join(std::span(t.accepted_per_depth).first(t.depths), ", "),
                                  static_cast<double>(t.predicted_n - 1) / static_cast<double>(t.rounds)));
  if (t.rounds > 0)
    row("rounds", fmt::format("{}: {:.2f} ms of drafts, {:.2f} of verifying, {:.2f} of following", t.rounds, t.draft_ms,
                              t.verify_ms, t.commit_ms));
  row("MTP head", head_line(engine));
  row("KV values clamped", std::to_string(engine.kv_clamps()));
  for (const auto& [part, planned] : engine.plan().parts)
    row(fmt::format("memory, {}", name_of(part)),
        fmt::format("{} planned{}", human_bytes(planned),
                    part == MemoryPart::fixed
                        ? std::string()
                        : fmt::format(", {} at the peak", human_bytes(memory_use(part).peak_bytes))));
  row("memory, all", fmt::format("{} planned of {}, context {} tokens", human_bytes(engine.plan().planned_bytes),
                                 human_bytes(engine.plan().budget_bytes), engine.plan().context_tokens));
  return out;
}

}  // namespace outrider
