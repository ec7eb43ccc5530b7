// Peaks of AVX2. Assembly, because the compiler would fold the loops.
#ifdef __x86_64__
#include <immintrin.h>

#include <cstddef>

#include "kernels/cpu/peak_loops.h"

#define AVX2 __attribute__((target("avx2,fma")))

namespace outrider {
namespace {

// Twelve chains: more than latency (4) times units (2).
#define FMA(i) "vfmadd231ps %%ymm0, %%ymm1, %%ymm" #i "\n"
#define ZERO(i) "vpxor %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n"
#define ZERO_LOW ZERO(0) ZERO(1) ZERO(2) ZERO(3) ZERO(4) ZERO(5) ZERO(6) ZERO(7)
#define ZERO_HIGH ZERO(8) ZERO(9) ZERO(10) ZERO(11) ZERO(12) ZERO(13) ZERO(14) ZERO(15)
#define CLOBBER_LOW "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7"
#define CLOBBER_HIGH "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc"

AVX2 void run_f32(std::int64_t rounds) {
  asm volatile(ZERO_LOW ZERO_HIGH
               "1:\n" FMA(2) FMA(3) FMA(4) FMA(5) FMA(6) FMA(7) FMA(8) FMA(9) FMA(10) FMA(11) FMA(12) FMA(13)
               "dec %0\n"
               "jnz 1b\n vzeroupper\n"
               : "+r"(rounds)
               :
               : CLOBBER_LOW, CLOBBER_HIGH);
}

// A product needs an accumulator: the multiply-add of pairs and the addition, one to one.
#define PAIR(multiply, add, product, sum) \
  multiply " %%ymm0, %%ymm1, %%ymm" #product "\n" add " %%ymm" #product ", %%ymm" #sum ", %%ymm" #sum "\n"
#define PAIRS_LOW(m, a) PAIR(m, a, 2, 10) PAIR(m, a, 3, 11) PAIR(m, a, 4, 12) PAIR(m, a, 5, 13)
#define PAIRS_HIGH(m, a) PAIR(m, a, 6, 14) PAIR(m, a, 7, 15) PAIR(m, a, 8, 10) PAIR(m, a, 9, 11)
#define PAIRS(m, a) PAIRS_LOW(m, a) PAIRS_HIGH(m, a)

AVX2 void run_i16(std::int64_t rounds) {
  asm volatile(ZERO_LOW ZERO_HIGH "1:\n" PAIRS("vpmaddwd", "vpaddd") "dec %0\n"
                                                           "jnz 1b\n vzeroupper\n"
               : "+r"(rounds)
               :
               : CLOBBER_LOW, CLOBBER_HIGH);
}

AVX2 void run_i8(std::int64_t rounds) {
  asm volatile(ZERO_LOW ZERO_HIGH "1:\n" PAIRS("vpmaddubsw", "vpaddw") "dec %0\n"
                                                             "jnz 1b\n vzeroupper\n"
               : "+r"(rounds)
               :
               : CLOBBER_LOW, CLOBBER_HIGH);
}

}  // namespace

PeakLoop avx2_peak_loop(PeakKind kind) {
  if (kind == PeakKind::f32) return {run_f32, 12 * 8, "vfmadd231ps"};
  if (kind == PeakKind::i16) return {run_i16, 8 * 16, "vpmaddwd + vpaddd"};
  return {run_i8, 8 * 32, "vpmaddubsw + vpaddw"};
}

AVX2 std::uint64_t avx2_read_sum(const std::uint64_t* words, std::size_t bytes) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  const char* at = reinterpret_cast<const char*>(words);
  for (const char* end = at + bytes; at != end; at += 128) {
    _mm_prefetch(at + 2048, _MM_HINT_T0);
    _mm_prefetch(at + 2112, _MM_HINT_T0);
    const __m256i* lines = reinterpret_cast<const __m256i*>(at);
    a = _mm256_add_epi64(a, _mm256_loadu_si256(lines));
    b = _mm256_add_epi64(b, _mm256_loadu_si256(lines + 1));
    c = _mm256_add_epi64(c, _mm256_loadu_si256(lines + 2));
    d = _mm256_add_epi64(d, _mm256_loadu_si256(lines + 3));
  }
  alignas(32) std::uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes),
                     _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d)));
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

}  // namespace outrider

#endif  // __x86_64__
