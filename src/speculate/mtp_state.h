// What goes into and comes out of the draft rows of a group (speculate/mtp_rows.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "device/tensor.h"
#include "state/kv_row.h"

namespace outrider {

// What becomes of accepted draft rows, whose hiddens were the module's own outputs.
enum class Refresh : std::uint8_t {
  from_target,  // they are dropped, and their pairs (token, true hidden) are carried into the row's next pass
  as_drafted    // they stay
};

// A row outside of a group. Shares nothing with the group it was extracted from.
struct MtpState {
  KvRow kv;              // positions 0 .. n-1; empty when n = 1
  AlignedBuffer hidden;  // f32 [E]
  // Draft rows from the first on with the bytes of a prefill; under from_target all.
  std::int64_t exact = 0;
};

// A row of checkpoint format mtp-row-v1: token-major planes, as KvRow::read gives them.
struct MtpCheckpoint {
  static constexpr const char* kFormat = "mtp-row-v1";
  std::int64_t draft_offset = 0;  // n - 1: draft rows in k and v
  std::int64_t exact = 0;         // as MtpState
  std::string identity;           // DraftModule::identity()
  std::vector<std::byte> k, v;    // [n-1][K*D] of the KV's type; empty at n = 1
  std::vector<float> hidden;      // [E]
};

// A row that joins. `state` is borrowed; null: cold. planned_tokens: see BatchRow. One that joins without a head is
// kept for its place alone, as one that has given its head up.
struct MtpJoin {
  enum class Head : std::uint8_t { with, without };
  const MtpState* state = nullptr;
  std::int64_t planned_tokens = 0;
  Head head = Head::with;
};

// Tokens the target has processed, and its hiddens for them: context row i belongs to tokens[i]; further rows are not
// looked at. At least one token. Borrowed.
struct MtpFeed {
  std::int64_t row = 0;
  std::span<const std::int32_t> tokens;
  Tensor context;
};

struct MtpAsk {
  std::int64_t row = 0;
  std::int32_t pending = 0;  // emitted, not yet processed by the target
  std::int64_t depth = 0;    // 0..K; 0 only keeps the KV aligned
  std::int64_t t = 0;        // index of the first proposal in its answer
};

// The end of a round: the target's hiddens [m+1, E] over the window [pending, first m proposals], of which `accepted`
// were right.
struct MtpVerdict {
  std::int64_t row = 0;
  std::int64_t accepted = 0;
  Tensor context;
};

enum class RowResult : std::uint8_t {
  done,
  failed,       // this row is as it was before the round (its values or its port failed); others are not affected
  without_head  // the row joined without a head, or gave it up after three failures: nothing was done
};

}  // namespace outrider
