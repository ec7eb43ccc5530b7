// The most multiply-adds an instruction set does: loops of nothing else, over registers. They are the limits that
// products and attention are measured against, in the process and at the time of the measurement.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/kernel_table.h"

namespace outrider {

// f32: attention and dense weights. i16: the exact products of numerics.md section 2. i8: what 8-bit input codes
// would allow.
enum class PeakKind : std::uint8_t { f32, i16, i8 };

struct PeakLoop {
  void (*run)(std::int64_t rounds) = nullptr;  // one thread, rounds >= 1; allocates nothing
  std::int64_t macs_per_round = 0;
  std::string_view instructions;  // what a round is made of, for people
};

// The loop of a table. Only for a table this processor has (kernel_table()). Integer products include the addition to
// an accumulator, with instructions that have none of their own.
PeakLoop peak_loop(Isa isa, PeakKind kind);

// The sum of the 64-bit words of `bytes` (a multiple of 256), read in ascending order as fast as this processor reads.
std::uint64_t read_sum(Isa isa, const std::uint64_t* words, std::size_t bytes);

}  // namespace outrider
