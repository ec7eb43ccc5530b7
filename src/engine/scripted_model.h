// Test support: a model of a few lines whose logits are a hash of exactly the tokens in its row's KV blocks. A wrong
// block, position, chunk or neighbour gives other logits.
#pragma once

#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/failure_injection.h"
#include "engine/core.h"
#include "engine/sampler.h"

namespace outrider {

inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9ull;
  return x ^ (x >> 32);
}

// Passes everything on to another model: a base for those that change one thing.
class ForwardingModel : public Model {
 public:
  explicit ForwardingModel(Model& inner) : inner_(inner) {}
  const Declaration& declaration() const override { return inner_.declaration(); }
  std::size_t weight_bytes() const override { return inner_.weight_bytes(); }
  std::size_t scratch_bytes(const Device& device, const StepLimits& limits) const override {
    return inner_.scratch_bytes(device, limits);
  }
  Tensor forward(const Step& step, const RaggedBatch& batch) override { return inner_.forward(step, batch); }
  Tensor run_layer_range(const Step& step, const RaggedBatch& batch, Tensor h, std::int64_t first,
                         std::int64_t last) override {
    return inner_.run_layer_range(step, batch, h, first, last);
  }
  void head(const Step& step, Tensor hidden, Tensor logits) override { inner_.head(step, hidden, logits); }
  std::int64_t length_class(std::int64_t planned_tokens) const override { return inner_.length_class(planned_tokens); }
  const NativeDraft* native_draft() const override { return inner_.native_draft(); }

 private:
  Model& inner_;
};

class ScriptedModel : public Model {
 public:
  explicit ScriptedModel(std::int64_t vocab = 61, std::int64_t context = 4096) {
    declaration_.architecture = "scripted";
    declaration_.kv = {1, 1, 8, FloatType::f16};
    declaration_.layers = 1;
    declaration_.width = 4;
    declaration_.vocab = vocab;
    declaration_.context_tokens = context;
  }
  const Declaration& declaration() const override { return declaration_; }
  std::size_t weight_bytes() const override { return 0; }
  std::size_t scratch_bytes(const Device&, const StepLimits& limits) const override {
    const std::int64_t floats = (limits.tokens + limits.head_rows) * 4 + limits.head_rows * declaration_.vocab;
    return static_cast<std::size_t>(floats) * 4 + 1024;
  }

  // hidden [4]: the four 16-bit parts of the hash of the row's tokens up to this one, read back from its KV blocks.
  Tensor forward(const Step& step, const RaggedBatch& batch) override {
    if (before_forward) before_forward(batch);
    for (std::int64_t t = 0; step.kv_clamps != nullptr && t < batch.size(); ++t) step.kv_clamps[t] += clamps_per_token;
    const Tensor h = step.arena.tensor(batch.size(), 4);
    for (const BatchRow& row : batch.rows)
      for (std::int64_t i = row.begin; i < row.end; ++i) {
        const std::int64_t position = row.position + i - row.begin;
        *slot(row, position) = batch.tokens[static_cast<std::size_t>(i)];
        std::uint64_t hash = 0;
        for (std::int64_t p = 0; p <= position; ++p) hash = mix(hash + static_cast<std::uint64_t>(*slot(row, p)) + 1);
        for (int part = 0; part < 4; ++part) h.row(i)[part] = static_cast<float>(hash >> (16 * part) & 0xFFFF);
        if (batch.tokens[static_cast<std::size_t>(i)] == fault_token) step.faults[i] |= 1;
      }
    return h;
  }
  Tensor run_layer_range(const Step&, const RaggedBatch&, Tensor h, std::int64_t, std::int64_t) override { return h; }
  void head(const Step& step, Tensor hidden, Tensor logits) override {
    if (before_head) before_head();
    for (std::int64_t r = 0; r < hidden.rows; ++r) {
      std::uint64_t hash = 0;
      for (int part = 0; part < 4; ++part) hash |= static_cast<std::uint64_t>(hidden.row(r)[part]) << (16 * part);
      for (std::int64_t v = 0; v < logits.width; ++v)
        logits.row(r)[v] = static_cast<float>(mix(hash + static_cast<std::uint64_t>(v) * 7919) >> 40) * 0x1p-20f;
      if (head_fault) step.faults[r] |= 1;
      if (nan_logit >= 0) logits.row(r)[nan_logit] = std::numeric_limits<float>::quiet_NaN();
    }
  }

  std::function<void(const RaggedBatch&)> before_forward;
  std::function<void()> before_head;
  std::int32_t fault_token = -1;
  bool head_fault = false;
  std::int64_t clamps_per_token = 0;
  std::int64_t nan_logit = -1;  // this logit of every row is NaN, without a fault flag

 private:
  std::int32_t* slot(const BatchRow& row, std::int64_t position) const {
    std::byte* block = row.blocks[static_cast<std::size_t>(position / kBlockKeys)];
    return reinterpret_cast<std::int32_t*>(block + declaration_.kv.v_offset(0, 0) + position % kBlockKeys * 16);
  }
  Declaration declaration_;
};

inline std::uint64_t hash_of_bits(std::span<const float> logits) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const auto byte : std::as_bytes(logits)) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3ull;
  return hash;
}

// The test rule `bits` of serving.md section 0: token = FNV-1a of the row's logit bytes mod V. Under a mask, the n-th
// of the allowed tokens, n = that hash mod their number.
class BitsChooser : public TokenChooser {
 public:
  void choose(Device&, Tensor logits, std::span<const ChoosingRow> rows, std::span<Choice> out) override {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto width = static_cast<std::size_t>(logits.width);
      const std::uint64_t hash = hash_of_bits({logits.row(static_cast<std::int64_t>(r)), width});
      if (rows[r].allowed.empty())
        out[r].id = static_cast<std::int32_t>(hash % width);
      else
        choose_allowed(hash, rows[r].allowed, logits.width, out[r]);
    }
  }

 private:
  static void choose_allowed(std::uint64_t hash, std::span<const std::uint32_t> allowed, std::int64_t vocab,
                             Choice& out) {
    std::uint64_t count = 0;
    for (std::int64_t id = 0; id < vocab; ++id) count += is_allowed(allowed, id) ? 1 : 0;
    if (count == 0) {
      out.failure = no_token_left();
      return;
    }
    std::uint64_t left = hash % count;
    for (out.id = 0; !is_allowed(allowed, out.id) || left-- > 0;) ++out.id;
  }
};

// What came out of one request.
struct Answer {
  std::vector<std::int32_t> ids;
  std::string text;
  std::vector<double> prompt_logprobs;
  std::vector<float> logits, hidden;
  std::vector<TokenLogprob> logprobs;
  Event last;
  bool finished = false;
};

inline void collect(std::map<RequestId, Answer>& answers, const Event& event) {
  Answer& answer = answers[event.request];
  answer.ids.insert(answer.ids.end(), event.ids.begin(), event.ids.end());
  answer.text += event.text;
  answer.logprobs.insert(answer.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  answer.prompt_logprobs.insert(answer.prompt_logprobs.end(), event.prompt_logprobs.begin(),
                                event.prompt_logprobs.end());
  answer.logits.insert(answer.logits.end(), event.logits.begin(), event.logits.end());
  answer.hidden.insert(answer.hidden.end(), event.hidden.begin(), event.hidden.end());
  if (event.kind != Event::Kind::finished) return;
  answer.last = event;
  answer.last.logits = answer.last.hidden = {};
  answer.finished = true;
}

// Runs `core` to its end while the nth fallible point of its steps fails once. Whether there was such a point.
inline bool run_failing_once(Core& core, std::int64_t nth, std::map<RequestId, Answer>& answers) {
  constexpr std::size_t kMostEvents = 400;
  std::vector<Event> events;
  events.reserve(kMostEvents);
  FailureCountdown countdown{.left = nth};
  const auto deliver = [&](const Event& event) {
    armed_failure = nullptr;  // the consumer's own allocations are not the engine's
    OUTRIDER_CHECK(events.size() < kMostEvents);
    events.push_back(event);
    armed_failure = &countdown;
  };
  for (bool more = true; more;) {
    armed_failure = &countdown;
    try {
      more = core.step(deliver);
    } catch (const std::exception&) {
    }
    armed_failure = nullptr;
  }
  for (const Event& event : events) collect(answers, event);
  return countdown.fired != nullptr;
}

inline CoreLimits core_limits(std::int64_t rows = 8, std::int64_t prefill = 512, std::int64_t blocks = 512,
                              std::int64_t context = 4096) {
  CoreLimits limits;
  limits.schedule = {rows, prefill, blocks};
  limits.head_rows = rows;
  limits.context_tokens = context;
  return limits;
}
// The same with drafts, always as deep as `depth` allows.
inline CoreLimits drafting(CoreLimits limits, std::int64_t depth) {
  limits.speculation.depth = depth;
  limits.speculation.depths = DraftDepths::fixed;
  return limits;
}

}  // namespace outrider
