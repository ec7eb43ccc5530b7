// Fills every section of a kernel table but Linear: vectors, RoPE, KV rows, attention, the gated delta net, vocabulary.
// vector_portable.cpp and delta_portable.cpp are the specification; the vector forms (vector_kernels.inc,
// attention_kernels.inc, delta_kernels.inc) give its bytes. Rows with a NaN or an infinity stay
// faulty in every form, but which NaN they hold is not defined.
//
// Attention keeps a batch of queries on the caller's stack: 40 KiB is the most it needs.
#pragma once

#include "kernels/kernel_table.h"

namespace outrider {

void fill_vector_kernels_portable(KernelTable& table);
void fill_delta_kernels_portable(KernelTable& table);  // part of the above

#ifdef __x86_64__
void fill_vector_kernels_avx2(KernelTable& table);    // needs AVX2, FMA, F16C
void fill_vector_kernels_avx512(KernelTable& table);  // needs AVX-512 F, BW, VL, DQ
#endif

}  // namespace outrider
