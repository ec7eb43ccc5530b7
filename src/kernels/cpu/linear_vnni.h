// What the AMX table takes from the VNNI one.
#pragma once

#include "kernels/kernel_table.h"

namespace outrider::linear::vnni {

// KernelTable::product for 16-bit codes in their own order (those of avx512::code_rows).
void product(const PackedMatrix& w, Range strips, const CodedRows& x, Range rows, float* y, std::int64_t ldy);

}  // namespace outrider::linear::vnni
