// The raw loops of the engine, one table per instruction set. numerics.md is the law: every table gives the bytes of
// the portable one. Kernels work on pointers, allocate nothing, never throw and start no threads; shapes are checked
// above, in device/. The caller splits work over tokens, strips, heads and chunks, never over K.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/packed_matrix.h"

namespace outrider {

enum class Isa { portable, avx2, avx512, avx512_vnni, amx, neon };
enum class RopePairs : std::uint8_t { half_split, interleaved };

// Fault bits of a token (numerics.md section 8), OR-ed by kernels.
inline constexpr std::uint32_t kFaultNonFinite = 1;

// 16-bit input codes of M rows for one group width G (numerics.md section 2). Borrowed buffers, 64-byte aligned. The
// order of the codes within a row's G belongs to the table: only its own product() reads them (AMX keeps byte planes).
struct CodedRows {
  std::int16_t* codes = nullptr;  // [K/G][M][G]
  float* scales = nullptr;        // [K/G][M][2]: s, then float(sum of the codes)
  std::int64_t rows = 0;          // M, the stride between groups
};

// Rows [begin, end) of something.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Partial attention of one query and head over one absolute chunk of 512 keys (numerics.md section 5).
inline constexpr std::int64_t kBlockKeys = 64;
inline constexpr std::int64_t kChunkKeys = 512;

// Queries that share one row's chunk of keys and one kv head. `q` is scaled by f32(D^-1/2) after RoPE already.
struct AttendChunk {
  const float* const* q = nullptr;         // [queries] pointers to [D]
  const std::int64_t* last_key = nullptr;  // [queries] absolute index of the newest visible key (>= chunk_begin)
  std::int64_t queries = 0;
  std::int64_t chunk_begin = 0;  // multiple of 512
  // Keys below it (all in the row's first block) are seen by nobody: their scores count as -inf, so their p is +0.
  // Their values must be finite. At most every query's last_key, and < 64.
  std::int64_t first_key = 0;
  // [8] blocks of the chunk, null after the last one that a query sees: k [D][64] and v [64][D] of kv_type.
  const std::byte* const* k_blocks = nullptr;
  const std::byte* const* v_blocks = nullptr;
  // The block that the calling thread will likely read after this chunk, asked for ahead; null: unknown.
  const std::byte* next_k = nullptr;
  const std::byte* next_v = nullptr;
  FloatType kv_type = FloatType::f16;  // f16, or f32 under --precision f32
  std::int64_t head_width = 0;         // D
  float* m = nullptr;                  // [queries] out: running maximum
  float* l = nullptr;                  // [queries] out: sum, already reduced by the tree
  float* acc = nullptr;                // [queries][D] out
};

// The state after the row's first `tokens` tokens of a step goes to `slot` (device/tensor.h: RecurrentLayout).
struct RecurrentStore {
  std::int64_t tokens = 0;
  std::byte* slot = nullptr;
};

// How S is stored: `streamed` past the caches, for a state that is not read before other data have filled them. A line
// that is written whole is then not read first. A hint: the bytes are the same.
enum class DeltaStore : std::uint8_t { cached, streamed };

// Most keys of a head (Dk): the kernels keep a block of S on the stack while tokens pass.
inline constexpr std::int64_t kMaxDeltaKeys = 256;
// Most taps of its convolution.
inline constexpr std::int64_t kMaxConvTaps = 8;

// Writes of earlier tokens: S = g*S + k*delta^T of each in order, in the very steps of the token that left them.
struct DeltaLog {
  std::int64_t tokens = 0;
  const float* k = nullptr;      // [Dk]
  const float* delta = nullptr;  // [columns]
  const float* g = nullptr;      // [1]
  std::int64_t stride = 0;       // elements from one token's to the next one's
};

// The delta rule of one value head over consecutive tokens, for some of its columns (numerics.md section 6).
struct DeltaSteps {
  // S [Dk][columns] before the first token is `from` and the writes of `log` after it; rows of S in a slot are
  // state_stride elements apart. `from` null: zeros, without a log.
  const float* from = nullptr;
  DeltaLog log = {};
  std::int64_t state_stride = 0;  // Dv
  std::int64_t key_width = 0;     // Dk, at most kMaxDeltaKeys
  std::int64_t columns = 0;
  std::int64_t tokens = 0;
  // Of the first token: q, k [Dk] and v [columns], which becomes y; the next one's are token_stride elements behind.
  const float* q = nullptr;
  const float* k = nullptr;
  float* v = nullptr;
  std::int64_t token_stride = 0;
  // Of the first token: the decay g and the write strength b; the next one's are gate_stride elements behind.
  const float* g = nullptr;
  const float* b = nullptr;
  std::int64_t gate_stride = 0;
  // Where S goes: `store_offset` bytes into the slots of `stores`, ascending in their tokens, none of them `from`'s.
  std::span<const RecurrentStore> stores = {};
  std::size_t store_offset = 0;
  DeltaStore store = DeltaStore::cached;
  // Where the deltas [columns] of the tokens behind the first one go, delta_stride elements apart; null: nowhere.
  float* deltas = nullptr;
  std::int64_t delta_stride = 0;
};

struct KernelTable {
  Isa isa = Isa::portable;

  // --- Linear (numerics.md section 2). Leading dimensions ld* are in elements. ---
  // Codes rows [range) of x [M, K]; faults[row] |= kFaultNonFinite for a row with a non-finite group.
  void (*code_rows)(const float* x, std::int64_t ldx, std::int64_t k, int group, Range rows, const CodedRows& out,
                    std::uint32_t* faults);
  // y[row][o] = t for rows [rows) of the coded input and the outputs of strips [strips); w.kind affine or e2m1.
  void (*product)(const PackedMatrix& w, Range strips, const CodedRows& x, Range rows, float* y, std::int64_t ldy);
  // The same for w.kind dense: one fma chain over K per output.
  void (*dense_product)(const PackedMatrix& w, Range strips, const float* x, std::int64_t ldx, Range rows, float* y,
                        std::int64_t ldy);
  // Row `row` of w as f32 [K]: fma(float(q), scale, bias), scale*float(q) of e2m1, or the dense value.
  void (*unpack_row)(const PackedMatrix& w, std::int64_t row, float* y);

  // --- Vectors ---
  // y = (x*r)*w, r = 1/sqrt(sum/E + eps), the sum by 16 lanes and the tree (section 4). y may be x.
  void (*rms_norm)(const float* x, const float* w, std::int64_t width, float eps, float* y);
  void (*silu_mul)(const float* gate, const float* up, std::int64_t n, float* y);    // y = silu(gate)*up; y may be gate
  void (*sigmoid_mul)(const float* gate, const float* x, std::int64_t n, float* y);  // y = x*sigmoid(gate); y may be x
  void (*add)(const float* x, const float* y, std::int64_t n, float* z);             // z = x + y; z may be y
  void (*scale)(const float* x, float factor, std::int64_t n, float* y);             // y = x*factor; y may be x

  // --- RoPE (sections 1 and 4; models.md 2.2) ---
  // cos[i] = f32(cos64(f64(f32(position)*inv_freq[i]))) * m (the f32 product only when m != 1), sin alike; i < half.
  void (*rope_angles)(std::int64_t position, const float* inv_freq, std::int64_t half, float m, float* cos, float* sin);
  // Rotates the first 2*half elements of one head vector in place.
  void (*rope_rotate)(float* x, const float* cos, const float* sin, std::int64_t half, RopePairs pairs);

  // --- KV rows and attention (section 5) ---
  // Writes one position's k and v [D] into slot j (0..63) of its blocks. f16: rounded half to even, clamped to +-65504.
  // Returns the number of clamped values; *fault |= kFaultNonFinite for a non-finite input.
  std::int64_t (*store_kv)(const float* k, const float* v, std::int64_t head_width, std::int64_t j, FloatType kv_type,
                           std::byte* k_block, std::byte* v_block, std::uint32_t* fault);
  void (*attend_chunk)(const AttendChunk& work);
  // Merges partial b (the later chunk) into a.
  void (*attend_merge)(float* m_a, float* l_a, float* acc_a, float m_b, float l_b, const float* acc_b,
                       std::int64_t head_width);
  void (*attend_finish)(const float* acc, float l, std::int64_t head_width, float* o);  // o = acc/l

  // --- Gated delta net (section 6; models.md 3.3) ---
  // u[i] = silu(c), c = chain over the taps j of w[j][i]*rows[j][i], i < n. rows [taps]: p of consecutive positions,
  // null: zeros. w [taps][w_stride]. u may be the last row.
  void (*conv_silu)(const float* const* rows, const float* w, std::int64_t w_stride, std::int64_t taps, std::int64_t n,
                    float* u);
  void (*l2_norm)(const float* x, std::int64_t width, float eps, float* y);  // y = x*(1/sqrt(sum + eps)); y may be x
  // Per head: b = sigmoid(b), a = exp(-exp(a_log)*softplus(a + dt_bias)), the decay g; in place.
  void (*delta_gates)(const float* a_log, const float* dt_bias, std::int64_t heads, float* a, float* b);
  void (*delta_steps)(const DeltaSteps& work);
  // x = ((y*r)*w)*silu(z), r that of rms_norm; x may be y or z.
  void (*gated_norm)(const float* y, const float* z, const float* w, std::int64_t width, float eps, float* x);

  // --- Vocabulary (section 7) ---
  // Per tile of 256 of z [V]: the maximum and the sum of exp(z - max) (16 lanes and the tree; 0 when all are -inf).
  // tile_max, tile_sum: [ceil(V/256)], tiles [range) are written.
  void (*logp_tiles)(const float* z, std::int64_t vocab, Range tiles, float* tile_max, float* tile_sum);
  // The lowest index of the largest value; NaN is never chosen unless all are NaN (then 0). Sets *has_nan.
  std::int64_t (*argmax)(const float* z, std::int64_t n, bool* has_nan);
};

// The table of an instruction set; nullptr where this build or this processor lacks it. `portable` always exists.
const KernelTable* kernel_table(Isa isa);
std::string_view name_of(Isa isa);

// The table of the process: the best one of this processor, or the one OUTRIDER_ISA names, chosen at the first call.
// Error (usage) when OUTRIDER_ISA names one that this build or machine lacks, or is no name at all.
const KernelTable& kernels();
// The choice itself: the table of that name, or the best one for an empty name.
const KernelTable& choose_kernels(std::string_view name);

}  // namespace outrider
