// Peaks of the portable table, and which loop belongs to which table.
#include <cmath>
#include <cstddef>

#include "kernels/cpu/peak_loops.h"

namespace outrider {
namespace {

constexpr std::int64_t kLanes = 16;

// The compiler must not see through a round: it would multiply by the number of rounds instead.
template <class T>
void hide(T& values) {
  asm volatile("" : : "r"(&values) : "memory");
}

void run_f32(std::int64_t rounds) {
  float x[kLanes] = {}, sum[kLanes] = {};
  for (std::int64_t i = 0; i < rounds; ++i) {
    hide(x);
    for (std::int64_t l = 0; l < kLanes; ++l) sum[l] = std::fma(x[l], x[kLanes - 1 - l], sum[l]);
  }
  hide(sum);
}

template <class Code>
void run_integer(std::int64_t rounds) {
  Code x[kLanes] = {}, q[kLanes] = {};
  std::int32_t sum[kLanes] = {};
  for (std::int64_t i = 0; i < rounds; ++i) {
    hide(x);
    hide(q);
    for (std::int64_t l = 0; l < kLanes; ++l) sum[l] += std::int32_t{x[l]} * q[l];
  }
  hide(sum);
}

}  // namespace

PeakLoop portable_peak_loop(PeakKind kind) {
  if (kind == PeakKind::f32) return {run_f32, kLanes, "std::fma"};
  return {kind == PeakKind::i16 ? run_integer<std::int16_t> : run_integer<std::int8_t>, kLanes, "int multiply, add"};
}

std::uint64_t portable_read_sum(const std::uint64_t* words, std::size_t bytes) {
  std::uint64_t lanes[16] = {}, sum = 0;
  for (std::size_t i = 0; i + 16 <= bytes / 8; i += 16)
    for (std::size_t l = 0; l < 16; ++l) lanes[l] += words[i + l];
  for (const std::uint64_t lane : lanes) sum += lane;
  return sum;
}

PeakLoop peak_loop(Isa isa, PeakKind kind) {
  switch (isa) {
#ifdef __x86_64__
    case Isa::avx2:
      return avx2_peak_loop(kind);
    case Isa::avx512:
      return avx512_peak_loop(kind);
    case Isa::avx512_vnni:
      return avx512_vnni_peak_loop(kind);
    case Isa::amx:
      return amx_peak_loop(kind);
#endif
    default:
      return portable_peak_loop(kind);
  }
}

std::uint64_t read_sum(Isa isa, const std::uint64_t* words, std::size_t bytes) {
  switch (isa) {
#ifdef __x86_64__
    case Isa::avx2:
      return avx2_read_sum(words, bytes);
    case Isa::avx512:
    case Isa::avx512_vnni:
    case Isa::amx:
      return avx512_read_sum(words, bytes);
#endif
    default:
      return portable_read_sum(words, bytes);
  }
}

}  // namespace outrider
