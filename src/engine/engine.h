// The engine: requests in, tokens out. With request.h the public face of the engine room; knows neither sockets nor
// JSON.
//
//   auto engine = Engine::load(options);                  // refuses before allocating when over the memory budget
//   auto id = engine->submit({.ids = engine->encode_chat(messages), .max_tokens = 512});
//   while (engine->step([&](const Event& event) { ... })) {}
//
// One thread calls step(); submit() and cancel() are safe from any thread. Many requests run as one ragged step. What a
// request gets never depends on the others (serving.md section 0, B1 to B4).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "engine/request.h"
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
  // Speculation (serving.md section 3): most drafts of a row in a step, 0: none; absent: kUsualDraftTokens where
  // anything drafts. The text depends on none of it, but under SpecRule::ratio.
  static constexpr std::int64_t kUsualDraftTokens = 3;
  std::optional<std::int64_t> draft_tokens;
  TextDrafts text_drafts = TextDrafts::on;
  // Tokens of a draft vocabulary: rows of the target's head, packed once more, that drafts of an MTP head are taken
  // from where that pays. 0: none; absent: by the model (engine/draft_tokens.h).
  std::optional<std::int64_t> draft_vocabulary_tokens;
  // What drafts or a vocabulary mean that the model leaves nothing to act on: an error, or nothing.
  enum class IdleDrafts : std::uint8_t { refused, ignored } idle_drafts = IdleDrafts::refused;
  std::function<void(std::string_view stage, double fraction)> progress;  // may be empty
  // Of stored prefixes; 0: none. Absent: a quarter of what the smallest context leaves of the budget. A context of 0
  // leaves room for it, a named one may leave less.
  std::optional<std::uint64_t> prefix_cache_bytes;
  PanelUse panels = PanelUse::automatic;
  // Asked while the engine ends and a panel file is still being written: true gives it up. May be empty.
  std::function<bool()> interrupted;
};

// The memory contract (serving.md 5.1), computed from headers and file sizes alone. Loading changes it only where a
// text turns out larger than its estimate.
struct MemoryPlan {
  std::uint64_t budget_bytes = 0;
  std::map<MemoryPart, std::uint64_t> parts;  // weights, kv, recurrent and prefix where there are, scratch, text, fixed
  std::uint64_t planned_bytes = 0;            // sum of parts
  std::uint64_t kv_bytes_per_token = 0;
  std::int64_t context_tokens = 0, rows = 0;  // what kv was planned for
  // Rows {1, 4, 16} -> the largest context that fits when it is named, 0: none.
  std::map<int, std::int64_t> max_context_tokens;
  bool fits() const { return planned_bytes <= budget_bytes; }
};
MemoryPlan plan_memory(const LoadOptions& options);

struct ChatMessage {
  std::string role, content;
};

struct ModelFacts {
  std::string architecture, path;
  std::int64_t parameters = 0, layers = 0, width = 0, vocab = 0, context_tokens = 0;
  std::uint64_t weight_bytes = 0, kv_bytes_per_token = 0;
  std::uint64_t step_weight_bytes = 0;  // read by one plain decode step: not an untied embedding, nor an MTP head
  std::int64_t draft_tokens = 0;        // most drafts of a row in a step; 0: nothing drafts
  std::int64_t draft_vocabulary = 0;  // tokens the MTP head may draft from in place of all; 0: there is no such choice
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
