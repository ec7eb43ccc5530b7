// The tables of this build, one per instruction set, assembled at the first call. Calling one says nothing about the
// processor: kernel_table() does.
#pragma once

#include "kernels/kernel_table.h"

namespace outrider {

const KernelTable& portable_table();

#ifdef __x86_64__
const KernelTable& avx2_table();
const KernelTable& avx512_table();
const KernelTable& avx512_vnni_table();
const KernelTable& amx_table();
#endif

}  // namespace outrider
