#include "engine/scheduler.h"

#include <algorithm>

#include "device/tensor.h"

namespace outrider {

std::int64_t planned_kv_blocks(std::int64_t prompt_tokens, std::int64_t max_tokens) {
  return kv_blocks_for(prompt_tokens + max_tokens + 1);
}

std::int64_t largest_max_tokens(std::int64_t prompt_tokens, std::int64_t blocks) {
  return blocks * kBlockKeys - 1 - prompt_tokens;
}

std::vector<std::int64_t> plan_step(std::span<RowDemand> rows, const ScheduleLimits& limits, std::int64_t& turns) {
  std::vector<std::int64_t> tokens(rows.size(), 0);
  std::vector<std::size_t> sharing;  // prompts, next turn first
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].kind == RowDemand::Kind::decode)
      tokens[i] = rows[i].pending;
    else if (static_cast<std::int64_t>(sharing.size()) < limits.prompt_rows)
      sharing.push_back(i);
  }
  std::sort(sharing.begin(), sharing.end(), [&](std::size_t a, std::size_t b) { return rows[a].turn < rows[b].turn; });

  std::int64_t left = limits.prefill_step_tokens;
  const bool on_grid = left >= kBlockKeys;
  for (bool any_ran = true; any_ran && left > 0;) {
    any_ran = false;
    for (const std::size_t i : sharing) {
      RowDemand& row = rows[i];
      const std::int64_t to_grid = kBlockKeys - (row.position + tokens[i]) % kBlockKeys;
      const std::int64_t turn = std::min(row.pending - tokens[i], on_grid ? to_grid : left);
      if (turn == 0 || turn > left) continue;  // one that does not fit keeps its place: it is next
      tokens[i] += turn;
      left -= turn;
      row.turn = ++turns;
      any_ran = true;
    }
  }
  return tokens;
}

std::vector<std::size_t> admit(std::span<Waiting> queue, Room room) {
  std::vector<std::size_t> admitted;
  std::vector<std::size_t> passed_over;  // too big for now, in order
  for (std::size_t i = 0; i < queue.size() && room.rows > 0; ++i) {
    if (queue[i].blocks <= room.blocks) {
      admitted.push_back(i);
      room.blocks -= queue[i].blocks;
      --room.rows;
      for (const std::size_t waiting : passed_over) ++queue[waiting].overtaken;
    } else {
      passed_over.push_back(i);
    }
    const bool exhausted = std::any_of(passed_over.begin(), passed_over.end(),
                                       [&](std::size_t waiting) { return queue[waiting].overtaken >= kMostOvertakes; });
    if (exhausted) break;
  }
  return admitted;
}

}  // namespace outrider
