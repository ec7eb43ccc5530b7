// Test support: the byte contract under random schedules (serving.md section 0, runtime.md section 5). Requests join,
// leave, are cancelled and fail beside each other, begin from stored prefixes or cold, while drafts of random depth
// come from a script or the model's head, masks move with them, and any fallible point of a step may throw. Wherever a
// row stands where its solo run without drafts stood, its logits must have the same bytes.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engine/scripted_roll.h"

namespace outrider {

// A request and what came of it alone: one row, one chunk, no drafts.
struct FuzzCase {
  Request request;  // sampling.seed is its index
  std::vector<std::int32_t> answer;
  std::vector<std::uint64_t> bits;  // [i]: hash of the logits behind answer[0 .. i)
  FinishReason finish = FinishReason::stop;
  std::string error;
};

struct FuzzDice {
  std::uint64_t state = 0;
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(mix(++state) % static_cast<std::uint64_t>(count));
  }
  bool one_of(std::int64_t count) { return below(count) == 0; }
};

// A real model that may fail, and that a test may have break the contract.
class FuzzModel : public ForwardingModel {
 public:
  using ForwardingModel::ForwardingModel;
  Tensor forward(const Step& step, const RaggedBatch& batch) override {
    const Tensor hidden = ForwardingModel::forward(step, batch);
    for (std::size_t i = 0; i < batch.tokens.size(); ++i)
      if (batch.tokens[i] == fault_token) step.faults[i] |= 1;
    if (spoil) spoil(batch, hidden);
    fallible_point("FuzzModel::forward");
    return hidden;
  }
  void head(const Step& step, Tensor hidden, Tensor logits) override {
    ForwardingModel::head(step, hidden, logits);
    fallible_point("FuzzModel::head");
  }

  std::int32_t fault_token = -1;  // what its values are not finite at
  std::function<void(const RaggedBatch&, Tensor hidden)> spoil;
};

// Of a solo run: keeps the hash of each token's logits.
class RecordingChooser : public BitsChooser {
 public:
  explicit RecordingChooser(std::vector<std::uint64_t>& bits) : bits_(bits) {}
  void choose(Device& device, Tensor logits, std::span<const ChoosingRow> rows, std::span<Choice> out) override {
    bits_.push_back(hash_of_bits({logits.row(0), static_cast<std::size_t>(logits.width)}));
    BitsChooser::choose(device, logits, rows, out);
  }

 private:
  std::vector<std::uint64_t>& bits_;
};

// What happened in all episodes.
struct FuzzCounts {
  std::int64_t episodes = 0, steps = 0, compared = 0, finished = 0, cancelled = 0, faults = 0, failed_rows = 0;
  std::int64_t cached_tokens = 0, scripted_drafts = 0, head_drafts = 0, accepted = 0, window_rows = 0;
};

// The bits rule. Compares the logits of every choice that stands on a prefix of the solo answer, also where a window
// does not get there. Of most drafts of the head it chooses what the target will.
class WitnessChooser : public BitsChooser {
 public:
  WitnessChooser(std::span<const FuzzCase> cases, FuzzDice& dice, FuzzCounts& counts, std::string& failure)
      : cases_(cases), dice_(dice), counts_(counts), failure_(failure) {}
  void choose(Device& device, Tensor logits, std::span<const ChoosingRow> rows, std::span<Choice> out) override {
    fallible_point("WitnessChooser");
    for (std::size_t r = 0; r < rows.size(); ++r)
      if (rows[r].report == LogprobReport::as_asked)
        compare(rows[r], {logits.row(static_cast<std::int64_t>(r)), static_cast<std::size_t>(logits.width)});
    BitsChooser::choose(device, logits, rows, out);
    for (std::size_t r = 0; r < rows.size(); ++r)
      if (rows[r].report == LogprobReport::none) guide(rows[r], out[r]);
  }

 private:
  void compare(const ChoosingRow& row, std::span<const float> logits) {
    const FuzzCase& known = cases_[static_cast<std::size_t>(row.seed)];
    const auto t = static_cast<std::size_t>(row.t);
    const auto generated = row.history.subspan(static_cast<std::size_t>(row.prompt_tokens));
    if (generated.size() != t && failure_.empty())
      failure_ = fmt::format("case {} chooses token {} behind {}", row.seed, t, generated.size());
    if (t >= known.bits.size() || !std::equal(generated.begin(), generated.end(), known.answer.begin())) return;
    ++counts_.compared;
    if (hash_of_bits(logits) != known.bits[t] && failure_.empty())
      failure_ = fmt::format("case {}: the logits of token {} are not those of its solo run", row.seed, t);
  }
  void guide(const ChoosingRow& row, Choice& out) {
    ++counts_.head_drafts;
    const FuzzCase& known = cases_[static_cast<std::size_t>(row.seed)];
    const auto t = static_cast<std::size_t>(row.t);
    if (out.failure || t >= known.answer.size() || dice_.one_of(4)) return;
    if (row.allowed.empty() || is_allowed(row.allowed, known.answer[t])) out.id = known.answer[t];
  }

  std::span<const FuzzCase> cases_;
  FuzzDice& dice_;
  FuzzCounts& counts_;
  std::string& failure_;
};

// Drafts of random depth: what the solo run answered, some of it wrong; or the head's; or none.
class FuzzDrafter : public TextDrafter {
 public:
  FuzzDrafter(std::span<const FuzzCase> cases, FuzzDice& dice, FuzzCounts& counts)
      : cases_(cases), dice_(dice), counts_(counts) {}
  std::int64_t propose(EngineRow& row, std::span<std::int32_t> out) override {
    fallible_point("FuzzDrafter");
    const FuzzCase& known = cases_[static_cast<std::size_t>(row.seed)];
    const std::int64_t count = dice_.one_of(2) ? dice_.below(std::ssize(out) + 1) : 0;
    for (std::int64_t j = 0; j < count; ++j) {
      const auto at = static_cast<std::size_t>(row.generated() + j);
      std::int32_t& id = out[static_cast<std::size_t>(j)];
      id = at < known.answer.size() ? known.answer[at] : 0;
      if (dice_.one_of(5)) id = static_cast<std::int32_t>(dice_.below(known_vocab));
    }
    counts_.scripted_drafts += count;
    return count;
  }
  std::int64_t head_depth(const EngineRow&, std::int64_t most) override { return dice_.below(most + 1); }

  std::int64_t known_vocab = 2;

 private:
  std::span<const FuzzCase> cases_;
  FuzzDice& dice_;
  FuzzCounts& counts_;
};

}  // namespace outrider
