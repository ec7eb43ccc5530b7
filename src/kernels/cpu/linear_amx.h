// The AMX table's own order of input codes. A product of more than kIntegerRows coded rows (CodedRows::rows, the same
// for code_rows and product) runs on tiles and reads byte planes; fewer rows stay 16-bit integers for the VNNI form.
#pragma once

#include "kernels/kernel_table.h"

namespace outrider::linear::amx {

inline constexpr std::int64_t kIntegerRows = 8;

// A row's group is G high bytes (code >> 8, signed), then G low bytes (code & 255). Within each sixteen the bytes lie
// in this order: so the low and the high nibbles of a word of 4-bit weights are rows of a tile as they are.
inline constexpr std::uint8_t kPlaneOrder[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};

// KernelTable::code_rows into byte planes.
void code_planes(const float* x, std::int64_t ldx, std::int64_t k, int group, Range rows, const CodedRows& out,
                 std::uint32_t* faults);

}  // namespace outrider::linear::amx
