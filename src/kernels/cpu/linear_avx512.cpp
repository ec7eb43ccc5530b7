// AVX-512: products of coded rows with affine and e2m1 weights by vpmaddwd and vpaddd.
#ifdef __x86_64__

#include "kernels/cpu/linear_avx512.h"

#include "kernels/cpu/linear_avx2.h"
#include "kernels/cpu/linear_kernels.h"

#define OUTRIDER_PRODUCT OUTRIDER_AVX512
#define OUTRIDER_PRODUCT_INLINE OUTRIDER_AVX512_INLINE

namespace outrider {
namespace linear::avx512 {
namespace {

// The empty asm hides the sum from the compilers, which otherwise reassociate the integer sums of a loop body and spill
// accumulators.
OUTRIDER_AVX512_INLINE __m512i add_products(__m512i acc, __m512i weights, __m512i pair) {
  __m512i sum = _mm512_add_epi32(acc, _mm512_madd_epi16(weights, pair));
  asm("" : "+v"(sum));
  return sum;
}

#include "kernels/cpu/linear_avx512_product.inc"

void product(const PackedMatrix& w, Range strips, const CodedRows& x, Range rows, float* y, std::int64_t ldy) {
  with_format(w, [&]<class F>() { product_of_format<F>(w, strips, x, rows, y, ldy); });
}

}  // namespace
}  // namespace linear::avx512

void fill_linear_kernels_avx512(KernelTable& table) {
  table.code_rows = linear::avx512::code_rows;
  table.product = linear::avx512::product;
  table.dense_product = linear::avx512::dense_product;
  table.unpack_row = linear::avx2::unpack_row;  // AVX-512 F implies AVX2, FMA and F16C; one row is bound by memory
}

}  // namespace outrider

#endif  // __x86_64__
