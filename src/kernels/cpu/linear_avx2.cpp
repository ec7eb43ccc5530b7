// AVX2: products of coded rows (vpmaddwd) with affine and e2m1 weights. The integer sums are exact, so their order is
// free; the f32 part follows numerics.md section 2 literally.
#ifdef __x86_64__

#include "kernels/cpu/linear_avx2.h"

#include "kernels/cpu/linear_avx2_forms.h"
#include "kernels/cpu/linear_kernels.h"

namespace outrider {
namespace linear::avx2 {
namespace {

// Up to here the few-row form runs. Codes of two planes cost more to widen: from six rows on, doing that once in L1 for
// all of them is as fast or faster (8 rows: 6 to 8 %).
constexpr std::int64_t kFewRowsOfPlanes = 5;
std::int64_t few_rows_of(const PackedMatrix& w) { return planes_of(w.bits).high == 0 ? kFewRows : kFewRowsOfPlanes; }

}  // namespace

void product(const PackedMatrix& w, Range strips, const CodedRows& x, Range rows, float* y, std::int64_t ldy) {
  const std::int64_t count = rows.end - rows.begin;
  if (count <= 0) return;
  if (count > few_rows_of(w)) {
    for (std::int64_t s = strips.begin; s < strips.end; ++s) many_rows_strip(w, s, x, rows, y, ldy);
    return;
  }
  const FewRowsStrip run = few_rows_strip_of(w, count);
  for (std::int64_t s = strips.begin; s < strips.end; ++s) run(w, s, x, rows.begin, y, ldy);
}

}  // namespace linear::avx2

void fill_linear_kernels_avx2(KernelTable& table) {
  table.code_rows = linear::avx2::code_rows;
  table.product = linear::avx2::product;
  table.dense_product = linear::avx2::dense_product;
  table.unpack_row = linear::avx2::unpack_row;
}

}  // namespace outrider

#endif  // __x86_64__
