// The engine: requests in, tokens out. The one public header of the engine room; knows neither sockets nor JSON.
//
//   auto engine = Engine::load(options);                  // refuses before allocating when over the memory budget
//   auto id = engine->submit({.ids = engine->encode_chat(messages), .max_tokens = 512});
//   while (engine->step([&](const Event& event) { ... })) {}
//
// One thread calls step(); submit() and cancel() are safe from any thread. Many requests run as one ragged step. What a
// request gets never depends on the others (serving.md section 0, B1 to B4).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "weights/model_source.h"

namespace outrider {

// Whether repetitions of a request's own text are proposed as drafts.
enum class TextDrafts : std::uint8_t { on, off };

struct LoadOptions {
  std::string model;      // directory, .gguf file, or name (resolve_model)
  SourceOptions reading;  // how its files are read: layout, MTP head, hidden tap
  Precision precision = Precision::packed;
  int threads = 0;                        // 0: default_threads()
  std::uint64_t memory_budget_bytes = 0;  // 0: 0.75 * usable memory
  std::int64_t context_tokens = 0;        // 0: the model's, or the largest that fits
  std::int64_t max_rows = 32;             // rows that may run at a time
  std::int64_t planned_rows = 1;          // rows at the full context that KV memory is planned for; all rows share it
  std::int64_t head_rows = 0;  // rows of logits computed at once; 0: those of a step. Scoring is faster with more
  std::int64_t prefill_step_tokens = 512;  // most prompt tokens of one step
  std::int64_t prompt_rows = 8;            // prompts that share them by turns
  // Speculation (serving.md section 3): most drafts of a row in a step, 0: none. The text depends on none of it, but
  // under SpecRule::ratio.
  std::int64_t draft_tokens = 3;
  TextDrafts text_drafts = TextDrafts::on;
  // Tokens of a draft vocabulary: rows of the target's head, packed once more, that drafts of an MTP head are taken
  // from where that pays. 0: none; absent: by the model (engine/draft_tokens.h).
  std::optional<std::int64_t> draft_vocabulary_tokens;
  std::function<void(std::string_view stage, double fraction)> progress;  // may be empty
  std::optional<std::uint64_t> prefix_cache_bytes;  // of stored prefixes; absent: a quarter of the rest; 0: none
  PanelUse panels = PanelUse::automatic;
  // Asked while the engine ends and a panel file is still being written: true gives it up. May be empty.
  std::function<bool()> interrupted;
};

// The memory contract (serving.md 5.1), computed from headers alone; text is measured after load, estimated before.
struct MemoryPlan {
  std::uint64_t budget_bytes = 0;
  std::map<MemoryPart, std::uint64_t> parts;  // weights, kv, recurrent and prefix where there are, scratch, text, fixed
  std::uint64_t planned_bytes = 0;            // sum of parts
  std::uint64_t kv_bytes_per_token = 0;
  std::int64_t context_tokens = 0, rows = 0;       // what kv was planned for
  std::map<int, std::int64_t> max_context_tokens;  // rows {1, 4, 16} -> largest context that fits, 0: none
  bool fits() const { return planned_bytes <= budget_bytes; }
};
MemoryPlan plan_memory(const LoadOptions& options);

enum class SamplerOrder : std::uint8_t { mlx, temperature_first };
enum class PenaltyScope : std::uint8_t { all, generated };
enum class LogprobsMode : std::uint8_t { processed, raw };

// serving.md section 2, field for field; the initial values are "off" or the built-in defaults.
struct SamplingParams {
  double temperature = 0, top_p = 1, min_p = 0;
  std::int64_t top_k = 0, min_tokens_to_keep = 1;
  double xtc_probability = 0, xtc_threshold = 0.1;
  double repetition_penalty = 0, presence_penalty = 0, frequency_penalty = 0;
  std::int64_t repetition_context_size = 20, presence_context_size = 0, frequency_context_size = 0;
  PenaltyScope repetition_scope = PenaltyScope::all, presence_scope = PenaltyScope::generated,
               frequency_scope = PenaltyScope::generated;
  std::vector<std::pair<std::int32_t, float>> logit_bias;  // -inf bans
  std::int64_t min_tokens = 0;
  bool ignore_eos = false;
  SamplerOrder order = SamplerOrder::mlx;
  std::optional<std::int64_t> seed;  // absent: drawn from the system, reported back
  std::uint32_t choice = 0;
  bool logprobs = false;
  int top_logprobs = 0;  // 0..20
  LogprobsMode logprobs_mode = LogprobsMode::processed;
};

enum class Want : std::uint8_t { generate, prompt_logprobs, prompt_logits };

// Which drafted tokens stand (serving.md section 3). automatic: greedy at temperature 0, coupled above it: the text is
// that without drafts. ratio, above temperature 0: the distribution is, and the text depends on the drafts.
enum class SpecRule : std::uint8_t { automatic, greedy, coupled, ratio };
// How deep a row drafts: where measurements say that it pays, or always as deep as it may, which `ratio` needs to give
// the same answer for the same seed.
enum class DraftDepths : std::uint8_t { measured, fixed };

class RolledState;  // engine/rolled_state.h

struct Request {
  std::vector<std::int32_t> ids;  // the prompt, at least one token
  std::int64_t max_tokens = 512;  // 0: evaluate the prompt only
  SamplingParams sampling;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool include_stop = false;
  std::optional<std::int64_t> draft_tokens;  // most drafts of a step; absent: what was loaded with, which is the most
  SpecRule spec_rule = SpecRule::automatic;
  DraftDepths draft_depths = DraftDepths::measured;
  std::shared_ptr<const RolledState> rolled;  // grammar, forced tokens, channel; may be null
  Want want = Want::generate;
  bool cache_prompt = true;                // stored prefixes are used and the own one is stored; not when scored
  std::vector<std::int64_t> prefix_marks;  // ascending: where other prompts may part from this one (message_ends())
};

using RequestId = std::uint64_t;
enum class FinishReason : std::uint8_t { stop, length, cancelled, failed };
std::string_view name_of(FinishReason reason);

struct TokenLogprob {
  std::int32_t id = 0;
  double logprob = 0;
  std::vector<std::pair<std::int32_t, double>> top;  // descending, ties by id
};

// serving.md section 7 `timings`; milliseconds. predicted_ms runs from the first token to the last, so its rate counts
// the predicted_n - 1 tokens after the first. cache_n: prompt tokens whose state was restored; prompt_n: the others.
struct Timings {
  double queue_ms = 0, prompt_ms = 0, ttft_ms = 0, predicted_ms = 0;
  std::int64_t cache_n = 0, prompt_n = 0, predicted_n = 0;
  double prompt_per_second = 0, predicted_per_second = 0;
  // Drafts: proposed and accepted; of the proposals at each of the first `depths` places of a window the share that
  // stood; the time of the steps the row decoded in.
  std::int64_t draft_n = 0, draft_n_accepted = 0;
  std::size_t depths = 0;
  std::array<double, 8> accepted_per_depth{};
  double draft_ms = 0, verify_ms = 0;
};

struct Usage {
  std::int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};

// What step() delivers. Spans are borrowed for the duration of the call.
struct Event {
  enum class Kind : std::uint8_t { tokens, prompt, finished };
  Kind kind = Kind::tokens;
  RequestId request = 0;
  std::string text;                          // tokens: new text, whole characters, stop strings held back
  std::vector<std::int32_t> ids;             // tokens: new ids, end tokens included
  std::vector<TokenLogprob> logprobs;        // tokens: one per id, when asked
  std::vector<double> prompt_logprobs;       // prompt: log p(ids[i+1]) of the positions of this chunk
  std::int64_t position = 0;                 // prompt: absolute position of the first row below
  std::span<const float> logits, hidden;     // prompt: [n,V] and [n,E] (pre-norm), Want::prompt_logits
  FinishReason finish = FinishReason::stop;  // finished
  std::string stop_match;                    // finished: the stop string that matched
  std::optional<Refusal> error;              // finished with FinishReason::failed
  Usage usage;
  Timings timings;
  std::int64_t seed = 0;
};

struct ChatMessage {
  std::string role, content;
};

struct ModelFacts {
  std::string architecture, path;
  std::int64_t parameters = 0, layers = 0, width = 0, vocab = 0, context_tokens = 0;
  std::uint64_t weight_bytes = 0, kv_bytes_per_token = 0;
  std::uint64_t step_weight_bytes = 0;  // read by one plain decode step: not an untied embedding, nor an MTP head
  std::vector<std::int32_t> end_tokens;
  bool has_text = false, has_chat_template = false;
  SamplingParams default_sampling;  // generation_config.json over the built-in values
};

// How long the parts of load() took. The text loads beside the weights, so the two do not add up.
struct LoadTimes {
  double load_ms = 0;                                                              // all of it
  double weights_ms = 0;                                                           // packing or mapping
  double text_ms = 0;                                                              // 0: no text
  enum class Weights : std::uint8_t { packed, mapped } weights = Weights::packed;  // mapped: from the panel file
};
std::string_view name_of(LoadTimes::Weights weights);

class Engine {
 public:
  static std::unique_ptr<Engine> load(const LoadOptions& options);
  ~Engine();

  const ModelFacts& facts() const;
  const MemoryPlan& plan() const;
  const LoadTimes& load_times() const;

  // Text side; Error (data) when the model has no tokenizer, Error (usage) when it has no chat template.
  std::vector<std::int32_t> encode(std::string_view text) const;
  std::vector<std::int32_t> encode_chat(std::span<const ChatMessage> messages, std::string_view prefill = {}) const;
  std::string decode(std::span<const std::int32_t> ids) const;
  // In ids of encode_chat(), of the first message and the last ones; none where no model state depends on it.
  std::vector<std::int64_t> message_ends(std::span<const ChatMessage>, std::span<const std::int32_t> ids) const;

  // Conformance: what the MTP head says to known tokens (engine/draft_scoring.h); between steps only. `hiddens` [T,E]
  // as Want::prompt_logits delivers them. Error: usage (no head), memory (what it takes does not fit beside the plan).
  struct DraftRowsEvent {
    std::int64_t position = 0;              // of the first row
    std::span<const float> hidden, logits;  // [n,E] and [n,V]
  };
  void score_drafts(std::span<const std::int32_t> ids, std::span<const float> hiddens,
                    const std::function<void(const DraftRowsEvent&)>& deliver);

  // What became of the model's MTP head; between steps.
  struct DraftHead {
    enum class State : std::uint8_t {
      none,     // the model has none, or it is not used
      in_use,   // drafts are taken from it where they pay
      given_up  // none of the first 200 tokens it drafted was accepted (models.md 4.6)
    } state = State::none;
    std::int64_t rows_without_head = 0;  // that went on without theirs after failures
  };
  DraftHead draft_head() const;

  // Checks every field and the memory contract: a Refusal names field, value, limit. Queues otherwise.
  Result<RequestId> submit(Request request);
  // Takes effect at the next step; unknown and finished ids are ignored.
  void cancel(RequestId id);
  // Values that did not fit the f16 KV rows and were clamped (numerics.md section 5), of all tokens that rows have kept
  // so far: prompts and answers, not drafts that did not stand. From any thread.
  std::int64_t kv_clamps() const;
  // Runs one step. Returns false when nothing is left to do. `deliver` must not call back into the engine.
  bool step(const std::function<void(const Event&)>& deliver);

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// GB/s this machine reads sequentially with `threads` threads (0: default_threads()), measured now (about 0.2 s) over a
// buffer of at most `buffer_bytes`. Meaningful from four times the last cache on: below, a cache counts.
// Below 1 MiB it would be the loop: then nothing is allocated or measured, and 0 returned.
double measure_read_bandwidth(int threads, std::size_t buffer_bytes = std::size_t{256} << 20);

}  // namespace outrider
