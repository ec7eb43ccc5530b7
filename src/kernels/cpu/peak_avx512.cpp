// Peaks of AVX-512, VNNI and AMX. Assembly, because the compiler would fold the loops.
#ifdef __x86_64__
#include <immintrin.h>

#include <cstddef>

#include "kernels/cpu/peak_loops.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define AMX __attribute__((target("amx-tile,amx-int8")))

namespace outrider {
namespace {

#define ZERO(i) "vpxorq %%zmm" #i ", %%zmm" #i ", %%zmm" #i "\n"
#define ZERO_LOW ZERO(0) ZERO(1) ZERO(2) ZERO(3) ZERO(4) ZERO(5) ZERO(6) ZERO(7)
#define ZERO_HIGH ZERO(8) ZERO(9) ZERO(10) ZERO(11) ZERO(12) ZERO(13) ZERO(14) ZERO(15)
#define CLOBBER_LOW "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7"
#define CLOBBER_HIGH "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc"
#define LOOP(body)                                        \
  asm volatile(ZERO_LOW ZERO_HIGH "1:\n" body             \
                                  "dec %0\n"              \
                                  "jnz 1b\n vzeroupper\n" \
               : "+r"(rounds)                             \
               :                                          \
               : CLOBBER_LOW, CLOBBER_HIGH)

// Twelve chains of an instruction that accumulates: more than latency (4 or 5) times units (2).
#define ONE(instruction, i) instruction " %%zmm0, %%zmm1, %%zmm" #i "\n"
#define CHAINS_LOW(n) ONE(n, 2) ONE(n, 3) ONE(n, 4) ONE(n, 5) ONE(n, 6) ONE(n, 7)
#define CHAINS_HIGH(n) ONE(n, 8) ONE(n, 9) ONE(n, 10) ONE(n, 11) ONE(n, 12) ONE(n, 13)
#define CHAINS(n) CHAINS_LOW(n) CHAINS_HIGH(n)
// The multiply-add of pairs and the addition to an accumulator, one to one.
#define PAIR(multiply, add, product, sum) \
  multiply " %%zmm0, %%zmm1, %%zmm" #product "\n" add " %%zmm" #product ", %%zmm" #sum ", %%zmm" #sum "\n"
#define PAIRS_LOW(m, a) PAIR(m, a, 2, 10) PAIR(m, a, 3, 11) PAIR(m, a, 4, 12) PAIR(m, a, 5, 13)
#define PAIRS_HIGH(m, a) PAIR(m, a, 6, 14) PAIR(m, a, 7, 15) PAIR(m, a, 8, 10) PAIR(m, a, 9, 11)
#define PAIRS(m, a) PAIRS_LOW(m, a) PAIRS_HIGH(m, a)

AVX512 void run_f32(std::int64_t rounds) { LOOP(CHAINS("vfmadd231ps")); }
AVX512 void run_i16(std::int64_t rounds) { LOOP(PAIRS("vpmaddwd", "vpaddd")); }
AVX512 void run_i8(std::int64_t rounds) { LOOP(PAIRS("vpmaddubsw", "vpaddw")); }
VNNI void run_vnni_i16(std::int64_t rounds) { LOOP(CHAINS("vpdpwssd")); }
VNNI void run_vnni_i8(std::int64_t rounds) { LOOP(CHAINS("vpdpbusd")); }

// Full tiles: 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Four tiles accumulate, so that no product waits for another's result.
#define TILES(body)                                                             \
  const TileConfig config;                                                      \
  asm volatile(                                                                 \
      "ldtilecfg %1\n"                                                          \
      "tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n" \
      "tilezero %%tmm4\n tilezero %%tmm5\n tilezero %%tmm6\n tilezero %%tmm7\n" \
      "1:\n" body "dec %0\n jnz 1b\n tilerelease\n"                             \
      : "+r"(rounds)                                                            \
      : "m"(config)                                                             \
      : "cc")

AMX void run_amx_i8(std::int64_t rounds) {
  TILES(
      "tdpbuud %%tmm4, %%tmm6, %%tmm0\n tdpbuud %%tmm4, %%tmm7, %%tmm1\n"
      "tdpbuud %%tmm5, %%tmm6, %%tmm2\n tdpbuud %%tmm5, %%tmm7, %%tmm3\n");
}

// 16-bit codes go in two exact passes: signed high bytes, unsigned low bytes.
AMX void run_amx_i16(std::int64_t rounds) {
  TILES(
      "tdpbsud %%tmm4, %%tmm6, %%tmm0\n tdpbsud %%tmm4, %%tmm7, %%tmm1\n"
      "tdpbuud %%tmm5, %%tmm6, %%tmm2\n tdpbuud %%tmm5, %%tmm7, %%tmm3\n");
}

constexpr std::int64_t kTileMacs = 16 * 16 * 64;

}  // namespace

PeakLoop avx512_peak_loop(PeakKind kind) {
  if (kind == PeakKind::f32) return {run_f32, 12 * 16, "vfmadd231ps"};
  if (kind == PeakKind::i16) return {run_i16, 8 * 32, "vpmaddwd + vpaddd"};
  return {run_i8, 8 * 64, "vpmaddubsw + vpaddw"};
}

PeakLoop avx512_vnni_peak_loop(PeakKind kind) {
  if (kind == PeakKind::f32) return avx512_peak_loop(kind);
  if (kind == PeakKind::i16) return {run_vnni_i16, 12 * 32, "vpdpwssd"};
  return {run_vnni_i8, 12 * 64, "vpdpbusd"};
}

PeakLoop amx_peak_loop(PeakKind kind) {
  if (kind == PeakKind::f32) return avx512_peak_loop(kind);
  if (kind == PeakKind::i16) return {run_amx_i16, 2 * kTileMacs, "tdpbsud + tdpbuud"};
  return {run_amx_i8, 4 * kTileMacs, "tdpbuud"};
}

AVX512 std::uint64_t avx512_read_sum(const std::uint64_t* words, std::size_t bytes) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  const char* at = reinterpret_cast<const char*>(words);
  for (const char* end = at + bytes; at != end; at += 256) {
    for (int line = 0; line < 4; ++line) _mm_prefetch(at + 2048 + 64 * line, _MM_HINT_T0);
    a = _mm512_add_epi64(a, _mm512_loadu_si512(at));
    b = _mm512_add_epi64(b, _mm512_loadu_si512(at + 64));
    c = _mm512_add_epi64(c, _mm512_loadu_si512(at + 128));
    d = _mm512_add_epi64(d, _mm512_loadu_si512(at + 192));
  }
  alignas(64) std::uint64_t lanes[8];
  _mm512_store_si512(lanes, _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d)));
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : lanes) sum += lane;
  return sum;
}

}  // namespace outrider

#endif  // __x86_64__
