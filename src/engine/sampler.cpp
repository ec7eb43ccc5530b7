#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/processors.h"
#include "speculate/acceptance.h"

namespace outrider {
namespace {

bool wants_logprobs(const ChoosingRow& row) {
  return row.report == LogprobReport::as_asked && (row.params->logprobs || row.params->top_logprobs > 0);
}
bool wants_raw(const ChoosingRow& row) { return wants_logprobs(row) && row.params->logprobs_mode == LogprobsMode::raw; }
bool needs_normalizer(const ChoosingRow& row) { return row.params->temperature > 0 || wants_logprobs(row); }

std::int32_t drawn(std::span<Candidate> left, const ChoosingRow& row, const DrawKey& key) {
  switch (row.drawing) {
    case Drawing::target:
      return draw(left, key);
    case Drawing::draft:
      return propose_by_ratio(left, row.draft_scores, key);
    case Drawing::verdict:
      return judge_by_ratio(row.draft, left, row.draft_scores, key).id;
  }
  OUTRIDER_CHECK(false, "drawing {}", static_cast<int>(row.drawing));
}

std::span<float> values(Tensor logits, std::int64_t row) {
  return {logits.row(row), static_cast<std::size_t>(logits.width)};
}

}  // namespace

Refusal numeric_error() {
  return {"the logits of this request are not finite (numeric_error); other requests are not affected", "",
          "numeric_error", 500};
}

Refusal no_token_left() {
  return {"no token is left to choose after bias and masks (grammar_dead_end)", "", "grammar_dead_end", 500};
}

Sampler::Sampler(std::int64_t vocab, std::int64_t tokenizer_size, std::vector<std::int32_t> newlines)
    : vocab_(vocab),
      tokenizer_size_(std::min(tokenizer_size, vocab)),
      newlines_(std::move(newlines)),
      candidates_(static_cast<std::size_t>(vocab) * sizeof(Candidate), MemoryPart::scratch),
      raw_(static_cast<std::size_t>(vocab) * sizeof(float), MemoryPart::scratch) {
  std::sort(newlines_.begin(), newlines_.end());
}

std::size_t Sampler::scratch_bytes(std::int64_t vocab) {
  return static_cast<std::size_t>(vocab) * (sizeof(Candidate) + sizeof(float));
}

void Sampler::choose(Device& device, Tensor logits, std::span<const ChoosingRow> rows, std::span<Choice> out) {
  OUTRIDER_CHECK(
      logits.rows == static_cast<std::int64_t>(rows.size()) && logits.width == vocab_ && rows.size() == out.size(),
      "{} logit rows for {} rows", logits.rows, rows.size());
  // Rows go through the device together; one that reports raw log-probabilities goes alone: there is one raw copy.
  for (std::size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    end = begin + 1;
    if (!wants_raw(rows[begin]))
      while (end < rows.size() && !wants_raw(rows[end])) ++end;
    choose_together(device, logits.slice(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end - begin)),
                    rows.subspan(begin, end - begin), out.subspan(begin, end - begin));
  }
}

void Sampler::choose_together(Device& device, Tensor logits, std::span<const ChoosingRow> rows, std::span<Choice> out) {
  Normalizer raw_norm;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out[i] = {};
    const std::span<float> z = values(logits, static_cast<std::int64_t>(i));
    mask_padded_ids(z, tokenizer_size_);
    bool bad = has_bad_logit(z);
    if (!bad && wants_raw(rows[i])) {
      std::copy(z.begin(), z.end(), raw_.as<float>().begin());
      device.log_normalizers(logits, &raw_norm.max, &raw_norm.ln_sum);
    }
    // Looked at twice: the end mask would hide what the model did, and a penalty may overflow a logit.
    if (!bad) {
      apply_processors(z, rows[i]);
      bad = has_bad_logit(z);
    }
    if (!bad) continue;
    out[i].failure = numeric_error();
    std::fill(z.begin(), z.end(), 0.0f);  // the device's passes over all rows stay clear of NaN
  }
  std::vector<std::int32_t> best(rows.size());
  std::vector<std::uint32_t> faults(rows.size());
  device.argmax(logits, best.data(), faults.data());
  std::vector<float> max(rows.size());
  std::vector<double> ln_sum(rows.size());
  if (std::any_of(rows.begin(), rows.end(), needs_normalizer))
    device.log_normalizers(logits, max.data(), ln_sum.data());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (out[i].failure) continue;
    const std::span<const float> z = values(logits, static_cast<std::int64_t>(i));
    finish_row(z, rows[i], {max[i], ln_sum[i]}, raw_norm, best[i], out[i]);
  }
}

void Sampler::finish_row(std::span<const float> z, const ChoosingRow& row, const Normalizer& norm,
                         const Normalizer& raw_norm, std::int32_t best, Choice& out) {
  const SamplingParams& p = *row.params;
  if (z[static_cast<std::size_t>(best)] == -std::numeric_limits<float>::infinity()) {
    out.failure = no_token_left();
    return;
  }
  out.id = best;
  if (p.temperature > 0) {
    const DrawKey key{row.seed, static_cast<std::uint32_t>(row.t), p.choice};
    out.id = drawn(filter_candidates(candidates_of(z, norm), p, key, {row.end_tokens, newlines_}), row, key);
    if (out.id < 0) {
      out.failure = numeric_error();
      return;
    }
  }
  if (!wants_logprobs(row)) return;
  out.logprob = wants_raw(row) ? report(raw_.as<float>(), raw_norm, out.id, p.top_logprobs)
                               : report(z, norm, out.id, p.top_logprobs);
}

std::span<Candidate> Sampler::candidates_of(std::span<const float> z, const Normalizer& norm) {
  const std::span<Candidate> all = candidates_.as<Candidate>();
  std::size_t count = 0;
  for (std::size_t id = 0; id < z.size(); ++id)
    if (z[id] > -std::numeric_limits<float>::infinity())
      all[count++] = {static_cast<std::int32_t>(id), norm.logp(z[id])};
  return all.first(count);
}

TokenLogprob Sampler::report(std::span<const float> z, const Normalizer& norm, std::int32_t id, int top) {
  TokenLogprob out;
  out.id = id;
  out.logprob = norm.logp(z[static_cast<std::size_t>(id)]);
  if (top <= 0) return out;
  const std::span<Candidate> all = candidates_of(z, norm);
  const auto count = std::min(static_cast<std::size_t>(top), all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end(),
                    [](const Candidate& a, const Candidate& b) { return a.l > b.l || (a.l == b.l && a.id < b.id); });
  for (const Candidate& c : all.first(count)) out.top.emplace_back(c.id, c.l);
  return out;
}

}  // namespace outrider
