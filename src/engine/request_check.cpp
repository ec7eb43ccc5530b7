#include "engine/request_check.h"

#include <algorithm>
#include <cmath>

#include "engine/scheduler.h"

namespace outrider {
namespace {

constexpr std::size_t kMostBiases = 4096, kMostStops = 16, kMostStopBytes = 512;

Refusal out_of_range(std::string_view field, std::string message) {
  return {std::move(message), std::string(field), "out_of_range", 400};
}

// NaN is outside every range.
std::optional<Refusal> outside(std::string_view field, double value, double low, double high) {
  if (value >= low && value <= high) return std::nullopt;
  return out_of_range(field, fmt::format("{} is {}, allowed are {} to {}", field, value, low, high));
}

std::optional<Refusal> below(std::string_view field, std::int64_t value, std::int64_t low) {
  if (value >= low) return std::nullopt;
  return out_of_range(field, fmt::format("{} is {}, the least is {}", field, value, low));
}

std::optional<Refusal> check_numbers(const SamplingParams& p) {
  const std::optional<Refusal> checks[] = {
      outside("temperature", p.temperature, 0, 5),
      outside("top_p", p.top_p, 0, 1),
      outside("min_p", p.min_p, 0, 1),
      below("top_k", p.top_k, -1),
      below("min_tokens_to_keep", p.min_tokens_to_keep, 1),
      outside("xtc_probability", p.xtc_probability, 0, 1),
      outside("xtc_threshold", p.xtc_threshold, 0, 0.5),
      outside("repetition_penalty", p.repetition_penalty, 0, 10),
      outside("presence_penalty", p.presence_penalty, -10, 10),
      outside("frequency_penalty", p.frequency_penalty, -10, 10),
      below("repetition_context_size", p.repetition_context_size, 0),
      below("presence_context_size", p.presence_context_size, 0),
      below("frequency_context_size", p.frequency_context_size, 0),
      below("min_tokens", p.min_tokens, 0),
      outside("top_logprobs", p.top_logprobs, 0, 20),
  };
  for (const auto& refusal : checks)
    if (refusal) return refusal;
  return std::nullopt;
}

std::optional<Refusal> check_bias(const SamplingParams& p, std::int64_t tokenizer_size) {
  if (p.logit_bias.size() > kMostBiases)
    return out_of_range("logit_bias",
                        fmt::format("logit_bias has {} entries, the most is {}", p.logit_bias.size(), kMostBiases));
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || id >= tokenizer_size)
      return out_of_range("logit_bias",
                          fmt::format("logit_bias names token {}, the tokenizer has {}", id, tokenizer_size));
    const bool ban = std::isinf(bias) && bias < 0;
    if (!ban && !(bias >= -100 && bias <= 100))
      return out_of_range("logit_bias",
                          fmt::format("logit_bias of token {} is {}, allowed are -100 to 100 or false", id, bias));
  }
  return std::nullopt;
}

std::optional<Refusal> check_stops(const Request& request, const RequestBounds& bounds) {
  if (request.stop.size() > kMostStops)
    return out_of_range("stop", fmt::format("{} stop strings, the most is {}", request.stop.size(), kMostStops));
  for (const std::string& stop : request.stop)
    if (stop.empty() || stop.size() > kMostStopBytes)
      return out_of_range("stop",
                          fmt::format("a stop string has {} bytes, allowed are 1 to {}", stop.size(), kMostStopBytes));
  if (!request.stop.empty() && !bounds.has_text)
    return Refusal{"stop strings need a tokenizer, this model has none", "stop", "unsupported_parameter", 400};
  for (const std::int32_t id : request.stop_token_ids)
    if (id < 0 || id >= bounds.tokenizer_size)
      return out_of_range("stop_token_ids", fmt::format("stop_token_ids names token {}, the tokenizer has {}", id,
                                                        bounds.tokenizer_size));
  return std::nullopt;
}

std::optional<Refusal> check_prompt(const Request& request, const RequestBounds& bounds) {
  if (request.ids.empty()) return Refusal{"the prompt has no tokens, the least is 1", "prompt", "missing_field", 400};
  // Rows of the head beyond the tokenizer may be scored; an answer could never contain them.
  const std::int64_t end = request.want == Want::generate ? bounds.tokenizer_size : bounds.vocab;
  const auto bad =
      std::find_if(request.ids.begin(), request.ids.end(), [&](std::int32_t id) { return id < 0 || id >= end; });
  if (bad != request.ids.end())
    return out_of_range("prompt", fmt::format("token id {} at position {} is outside the vocabulary of {}", *bad,
                                              bad - request.ids.begin(), end));
  const auto length = static_cast<std::int64_t>(request.ids.size());
  for (std::size_t i = 0; i < request.prefix_marks.size(); ++i) {
    const std::int64_t mark = request.prefix_marks[i], least = i == 0 ? 0 : request.prefix_marks[i - 1];
    if (mark < least || mark > length)
      return out_of_range("prefix_marks",
                          fmt::format("prefix mark {} is {}, allowed are {} to {}", i, mark, least, length));
  }
  if (auto refusal = below("draft_tokens", request.draft_tokens.value_or(0), 0)) return refusal;
  return below("max_tokens", request.max_tokens, 0);
}

std::optional<Refusal> check_rule(const Request& request) {
  const bool at_zero = request.sampling.temperature == 0;
  const auto conflict = [&](std::string_view rule, std::string_view needs) {
    return Refusal{fmt::format("spec_rule is {} and temperature {}: {} needs {}, auto goes with any", rule,
                               request.sampling.temperature, rule, needs),
                   "spec_rule", "conflicting_parameters", 400};
  };
  switch (request.spec_rule) {
    case SpecRule::automatic:
      return std::nullopt;
    case SpecRule::greedy:
      return at_zero ? std::nullopt : std::optional(conflict("greedy", "temperature 0"));
    case SpecRule::coupled:
      return at_zero ? std::optional(conflict("coupled", "a temperature above 0")) : std::nullopt;
    case SpecRule::ratio:
      return at_zero ? std::optional(conflict("ratio", "a temperature above 0")) : std::nullopt;
  }
  OUTRIDER_CHECK(false, "speculation rule {}", static_cast<int>(request.spec_rule));
}

std::optional<Refusal> check_cost(const Request& request, const RequestBounds& bounds) {
  const auto prompt = static_cast<std::int64_t>(request.ids.size());
  const std::int64_t answer = request.want == Want::generate ? request.max_tokens : 0;
  const std::int64_t most_by_memory = largest_max_tokens(prompt, bounds.kv_blocks);
  const std::int64_t most = std::min(bounds.context_tokens - prompt, most_by_memory);
  const std::string remedy = most >= 0 ? fmt::format("the largest max_tokens that passes is {}", most)
                                       : std::string("the prompt alone is too long");
  if (answer > bounds.context_tokens - prompt)
    return Refusal{fmt::format("{} prompt tokens + max_tokens {} exceed the context of {}; {}", prompt, answer,
                               bounds.context_tokens, remedy),
                   "max_tokens", "context_length_exceeded", 400};
  const std::int64_t blocks = planned_kv_blocks(prompt, answer);
  if (blocks > bounds.kv_blocks)
    return Refusal{fmt::format("{} prompt tokens + max_tokens {} need {} bytes of KV rows, {} are planned; {}", prompt,
                               answer, static_cast<std::uint64_t>(blocks) * bounds.kv_bytes_per_block,
                               static_cast<std::uint64_t>(bounds.kv_blocks) * bounds.kv_bytes_per_block, remedy),
                   "max_tokens", "memory_contract", 400};
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> check_request(const Request& request, const RequestBounds& bounds) {
  if (auto refusal = check_prompt(request, bounds)) return refusal;
  if (auto refusal = check_numbers(request.sampling)) return refusal;
  if (auto refusal = check_rule(request)) return refusal;
  if (auto refusal = check_bias(request.sampling, bounds.tokenizer_size)) return refusal;
  if (auto refusal = check_stops(request, bounds)) return refusal;
  return check_cost(request, bounds);
}

}  // namespace outrider
