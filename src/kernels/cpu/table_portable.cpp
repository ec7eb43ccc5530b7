#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu/vector_kernels.h"

namespace outrider {

const KernelTable& portable_table() {
  static const KernelTable table = [] {
    KernelTable filled;
    filled.isa = Isa::portable;
    fill_linear_kernels_portable(filled);
    fill_vector_kernels_portable(filled);
    return filled;
  }();
  return table;
}

}  // namespace outrider
