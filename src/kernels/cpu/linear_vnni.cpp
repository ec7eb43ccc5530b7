// AVX-512 VNNI: products of coded rows with affine and e2m1 weights by vpdpwssd, which multiplies and adds at once.
#ifdef __x86_64__

#include "kernels/cpu/linear_vnni.h"

#include "kernels/cpu/linear_avx512.h"
#include "kernels/cpu/linear_kernels.h"

#define OUTRIDER_PRODUCT __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define OUTRIDER_PRODUCT_INLINE \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"), always_inline)) inline

namespace outrider {
namespace linear::vnni {
namespace {

using namespace avx512;

// By asm: clang 19 turns half of the intrinsics of a long loop back into vpmaddwd and vpaddd (a factor 1.7), and GCC 12
// moves their accumulators to memory.
OUTRIDER_PRODUCT_INLINE __m512i add_products(__m512i acc, __m512i weights, __m512i pair) {
  asm("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(weights), "v"(pair));
  return acc;
}

#include "kernels/cpu/linear_avx512_product.inc"

}  // namespace

void product(const PackedMatrix& w, Range strips, const CodedRows& x, Range rows, float* y, std::int64_t ldy) {
  with_format(w, [&]<class F>() { product_of_format<F>(w, strips, x, rows, y, ldy); });
}

}  // namespace linear::vnni

void fill_linear_kernels_vnni(KernelTable& table) {
  fill_linear_kernels_avx512(table);
  table.product = linear::vnni::product;
}

}  // namespace outrider

#endif  // __x86_64__
