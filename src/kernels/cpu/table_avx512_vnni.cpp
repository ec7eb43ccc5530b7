#ifdef __x86_64__
#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu/vector_kernels.h"

namespace outrider {

const KernelTable& avx512_vnni_table() {
  static const KernelTable table = [] {
    KernelTable filled;
    filled.isa = Isa::avx512_vnni;
    fill_linear_kernels_vnni(filled);
    fill_vector_kernels_avx512(filled);
    return filled;
  }();
  return table;
}

}  // namespace outrider

#endif  // __x86_64__
