// The AMX table's own order of input codes. Calls for which reads_planes() holds run on tiles and read byte planes; the
// others, of few rows or of groups that fill a quarter of a tile (nvfp4: 0.65 to 0.9 of the VNNI form's speed), stay
// 16-bit integers for the VNNI form.
#pragma once

#include "kernels/kernel_table.h"

namespace outrider::linear::amx {

inline constexpr std::int64_t kIntegerRows = 8;
inline constexpr int kIntegerGroup = 16;
// rows: CodedRows::rows, the same for code_rows and product.
inline bool reads_planes(std::int64_t rows, int group) { return rows > kIntegerRows && group > kIntegerGroup; }

// A row's group is G high bytes (code >> 8, signed), then G low bytes (code & 255). Within each sixteen the bytes lie
// in this order: so the low and the high nibbles of a word of 4-bit weights are rows of a tile as they are.
inline constexpr std::uint8_t kPlaneOrder[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};

// KernelTable::code_rows into byte planes.
void code_planes(const float* x, std::int64_t ldx, std::int64_t k, int group, Range rows, const CodedRows& out,
                 std::uint32_t* faults);

}  // namespace outrider::linear::amx
