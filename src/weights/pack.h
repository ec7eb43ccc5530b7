// From rows of a stored matrix to the packed layout of kernels/packed_matrix.h (numerics.md 3), and back for tests.
// Affine codes go into panels of their own width (1 bit into 2, 7 bits into 8), e2m1 codes of mxfp4 and nvfp4 into e2m1
// panels, so the integers of every product are those of the file.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "weights/model_source.h"
#include "weights/quantized.h"

namespace outrider {

// A stored [n, k] matrix as rows, whatever its file. The readers are called from several threads at once; they throw
// Error (data) on values a model may not hold (a non-finite scale). Exactly one of `affine`, `e2m1` and `dense` is set.
struct MatrixRows {
  ModuleInfo info;
  // The tensors these rows are read from, by their suffix after the module path; others of the module stay unused.
  std::vector<std::string_view> parts = {".weight"};
  // codes [k], one per byte; scales and biases [k/G] of info.type.
  std::function<void(std::int64_t row, std::uint8_t* codes, std::byte* scales, std::byte* biases)> affine;
  // codes [k], one per byte; scale bytes [k/G], whose meaning `fp4` knows.
  std::function<void(std::int64_t row, std::uint8_t* codes, std::uint8_t* scales)> e2m1;
  Fp4Scales fp4;
  // values [k] of info.type.
  std::function<void(std::int64_t row, std::byte* values)> dense;
  // Rows [begin, end) have been read: their source pages may go. May be empty.
  std::function<void(std::int64_t begin, std::int64_t end)> drop;
};

// Packs strips [begin, end) of `form` = packed_form(rows.info, precision) into `out` (form.bytes(), zeroed, 64-byte
// aligned). Different strips may be packed by different threads.
void pack_strips(const MatrixRows& rows, const PackedMatrix& form, std::byte* out, std::int64_t begin,
                 std::int64_t end);

// All strips, into memory charged to the weights. `parallel` may be empty (one thread).
PackedWeight pack(const MatrixRows& rows, Precision precision, const ParallelFor& parallel);

// task(0) .. task(count - 1) on `parallel` (empty: here, in order); the first exception of a task is rethrown at the
// end.
void run_tasks(const ParallelFor& parallel, std::int64_t count, const std::function<void(std::int64_t)>& task);

// Row `row` as f32 [k]: fma(float(code), scale, bias), twice the e2m1 value times half the scale, or the dense value.
void read_row_f32(const MatrixRows& rows, std::int64_t row, std::span<float> values);

// Matrices in memory: MLX form (weight rows of k*b/8 bytes) or plain values, row-major and borrowed.
struct AffineMatrix {
  int bits = 0, group = 0;
  FloatType type = FloatType::f32;
  std::int64_t n = 0, k = 0;
  const std::byte* weight = nullptr;  // [n][k*bits/8]
  const std::byte* scales = nullptr;  // [n][k/group] of `type`
  const std::byte* biases = nullptr;
};
struct E2m1Matrix {
  Fp4Scales fp4;
  std::int64_t n = 0, k = 0;
  const std::byte* weight = nullptr;  // [n][k/2]
  const std::byte* scales = nullptr;  // [n][k/G]
};
struct DenseMatrix {
  FloatType type = FloatType::f32;
  std::int64_t n = 0, k = 0;
  const std::byte* values = nullptr;
};
MatrixRows rows_of(const AffineMatrix& matrix);
MatrixRows rows_of(const E2m1Matrix& matrix);
MatrixRows rows_of(const DenseMatrix& matrix);
PackedWeight pack_affine(const AffineMatrix& matrix);
PackedWeight pack_dense(const DenseMatrix& matrix);

// What was packed, read back by PackedMatrix::offset: one code per byte, scale and bias as f32, or dense values as f32.
struct Unpacked {
  std::vector<std::uint8_t> codes;    // affine, e2m1: [n][k]
  std::vector<float> scales, biases;  // affine: [n][k/G]; e2m1: the halved scales, no biases
  std::vector<float> values;          // dense: [n][k]
};
Unpacked unpack(const PackedMatrix& matrix);

}  // namespace outrider
