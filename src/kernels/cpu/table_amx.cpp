#ifdef __x86_64__
#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu/vector_kernels.h"

namespace outrider {

const KernelTable& amx_table() {
  static const KernelTable table = [] {
    KernelTable filled;
    filled.isa = Isa::amx;
    fill_linear_kernels_amx(filled);
    fill_vector_kernels_avx512(filled);
    return filled;
  }();
  return table;
}

}  // namespace outrider

#endif  // __x86_64__
