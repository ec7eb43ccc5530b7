// Which requests run and how many of their tokens a step takes (serving.md 5.1 to 5.3). Plain arithmetic over numbers:
// sees no tokens, no tensors, no clocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace outrider {

struct ScheduleLimits {
  std::int64_t rows = 32;                  // rows admitted at a time
  std::int64_t prefill_step_tokens = 512;  // most prompt tokens of one step
  std::int64_t kv_blocks = 0;              // blocks of the KV pool, all rows together
  std::int64_t prompt_rows = 8;            // prompts that share a step's prompt tokens by turns
};

// KV blocks a row is admitted with: 64-position blocks over prompt, answer and the pending token (serving.md 5.1).
std::int64_t planned_kv_blocks(std::int64_t prompt_tokens, std::int64_t max_tokens);
// The largest max_tokens that fits `blocks`; negative when not even the prompt does.
std::int64_t largest_max_tokens(std::int64_t prompt_tokens, std::int64_t blocks);

// An admitted row, in order of arrival: tokens it still has to run, and whether they end in a decode.
struct RowDemand {
  enum class Kind : std::uint8_t { prompt, decode };
  Kind kind = Kind::prompt;
  std::int64_t pending = 0;   // > 0
  std::int64_t position = 0;  // absolute, of the first of them
  std::int64_t turn = 0;  // prompts: the number of its last turn (or of its admission), distinct; the lowest is next
};

// Tokens each row runs in the next step; 0: it waits. Every decode row runs. The first prompt_rows prompts share
// prefill_step_tokens by turns: a turn runs to the next multiple of 64 positions or to the end of the prompt, so that
// chunks are whole blocks of the absolute grid. (A step below 64 tokens has no grid: turns take what there is.) `turns`
// counts them; rows that had one get its number. The step never exceeds prefill_step_tokens + rows tokens.
std::vector<std::int64_t> plan_step(std::span<RowDemand> rows, const ScheduleLimits& limits, std::int64_t& turns);

// Admission from the queue: first in, first out, except that a request too big for the free memory may be overtaken at
// most kMostOvertakes times; then everybody waits for it.
inline constexpr int kMostOvertakes = 8;
struct Waiting {
  std::int64_t blocks = 0;
  int overtaken = 0;
};
struct Room {
  std::int64_t rows = 0;
  std::int64_t blocks = 0;
};
// Indices into `queue` (ascending) that are admitted now. Counts the overtakes of those that stay.
std::vector<std::size_t> admit(std::span<Waiting> queue, Room room);

}  // namespace outrider
