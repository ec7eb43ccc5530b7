#include "engine/processors.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace outrider {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

struct Count {
  std::int32_t id = 0;
  std::int64_t count = 0;
};

// Distinct tokens of the last `window` tokens (0: all) of the history, or of its generated part, with their counts.
std::vector<Count> count_tokens(const ChoosingRow& row, std::int64_t window, PenaltyScope scope) {
  std::span<const std::int32_t> seen = row.history;
  if (scope == PenaltyScope::generated) seen = seen.subspan(static_cast<std::size_t>(row.prompt_tokens));
  if (window > 0 && seen.size() > static_cast<std::size_t>(window)) seen = seen.last(static_cast<std::size_t>(window));
  std::vector<std::int32_t> sorted(seen.begin(), seen.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<Count> counts;
  for (const std::int32_t id : sorted) {
    if (counts.empty() || counts.back().id != id) counts.push_back({id, 0});
    ++counts.back().count;
  }
  return counts;
}

void penalize_repetition(std::span<float> z, const ChoosingRow& row) {
  const SamplingParams& p = *row.params;
  if (p.repetition_penalty == 0 || p.repetition_penalty == 1) return;
  const auto rho = static_cast<float>(p.repetition_penalty);
  for (const Count& seen : count_tokens(row, p.repetition_context_size, p.repetition_scope)) {
    float& value = z[static_cast<std::size_t>(seen.id)];
    if (value == kBanned) continue;  // stays banned: a penalty that underflows to 0 would make it NaN
    value = value < 0 ? value * rho : value / rho;
  }
}

void penalize_counts(std::span<float> z, const ChoosingRow& row) {
  const SamplingParams& p = *row.params;
  if (p.presence_penalty != 0) {
    const auto alpha = static_cast<float>(p.presence_penalty);
    for (const Count& seen : count_tokens(row, p.presence_context_size, p.presence_scope))
      z[static_cast<std::size_t>(seen.id)] -= alpha;
  }
  if (p.frequency_penalty != 0) {
    const auto phi = static_cast<float>(p.frequency_penalty);
    for (const Count& seen : count_tokens(row, p.frequency_context_size, p.frequency_scope))
      z[static_cast<std::size_t>(seen.id)] -= phi * static_cast<float>(seen.count);
  }
}

// Words of the mask that allow nothing or everything, nearly all of them, cost one look.
void mask_forbidden(std::span<float> z, std::span<const std::uint32_t> allowed) {
  for (std::size_t first = 0; first < z.size(); first += 32) {
    const std::uint32_t word = allowed[first / 32];
    const std::span<float> part = z.subspan(first, std::min<std::size_t>(32, z.size() - first));
    if (word == 0) {
      std::fill(part.begin(), part.end(), kBanned);
    } else if (word != ~std::uint32_t{0}) {
      for (std::size_t i = 0; i < part.size(); ++i)
        if ((word >> i & 1U) == 0) part[i] = kBanned;
    }
  }
}

}  // namespace

void mask_padded_ids(std::span<float> z, std::int64_t tokenizer_size) {
  if (tokenizer_size < static_cast<std::int64_t>(z.size()))
    std::fill(z.begin() + static_cast<std::ptrdiff_t>(tokenizer_size), z.end(), kBanned);
}

void apply_processors(std::span<float> z, const ChoosingRow& row) {
  for (const auto& [id, bias] : row.params->logit_bias) z[static_cast<std::size_t>(id)] += bias;
  penalize_repetition(z, row);
  penalize_counts(z, row);
  if (row.params->ignore_eos || row.t < row.params->min_tokens)
    for (const std::int32_t id : row.end_tokens) z[static_cast<std::size_t>(id)] = kBanned;
  if (!row.allowed.empty()) mask_forbidden(z, row.allowed);
}

bool has_bad_logit(std::span<const float> z) {
  // Branch-free over the row: NaN compares false, +inf is not below itself.
  int bad = 0;
  for (const float value : z) bad |= static_cast<int>(!(value < std::numeric_limits<float>::infinity()));
  return bad != 0;
}

}  // namespace outrider
