// What a row knows of its stored prefix (engine/prefix_cache.h).
#pragma once

#include <cstdint>
#include <vector>

#include "state/prefix_store.h"

namespace outrider {

struct PrefixProgress {
  PrefixChain chain;
  std::vector<std::int64_t> checkpoints;  // positions in the prompt to be left behind, ascending
  std::vector<std::int64_t> due;          // those of the running step, and of the answer's
  std::int64_t offered = 0;               // blocks of the row that the store has been offered
  std::int64_t last_of_answer = 0;        // the latest checkpoint at or behind the prompt's end; 0: none
};

}  // namespace outrider
