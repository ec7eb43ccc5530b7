#ifdef __x86_64__
#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu/vector_kernels.h"

namespace outrider {

const KernelTable& avx2_table() {
  static const KernelTable table = [] {
    KernelTable filled;
    filled.isa = Isa::avx2;
    fill_linear_kernels_avx2(filled);
    fill_vector_kernels_avx2(filled);
    return filled;
  }();
  return table;
}

}  // namespace outrider

#endif  // __x86_64__
