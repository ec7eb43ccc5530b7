// Fills the Linear section of a kernel table (code_rows, product, dense_product, unpack_row); the other kernels have
// fillers of their own. linear_portable.cpp is the specification; the vector forms give its bytes (numerics.md 2, 3).
//
// The vector forms keep their accumulators on the caller's stack: 88 KiB is the most any of them needs.
#pragma once

#include "kernels/kernel_table.h"

namespace outrider {

void fill_linear_kernels_portable(KernelTable& table);

#ifdef __x86_64__
void fill_linear_kernels_avx2(KernelTable& table);    // needs AVX2, FMA, F16C
void fill_linear_kernels_avx512(KernelTable& table);  // needs AVX-512 F, BW, VL, DQ
void fill_linear_kernels_vnni(KernelTable& table);    // needs VNNI as well
void fill_linear_kernels_amx(KernelTable& table);     // needs AMX-TILE and AMX-INT8 as well, and their permission
#endif

}  // namespace outrider
