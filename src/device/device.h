// The fused operations a step is made of. Shapes are CHECKed here; kernels below see pointers only. One implementation
// per kind of machine (CpuDevice; CUDA later). Operations run one after another; each may use all of the device's
// threads; results never depend on how work was split (numerics.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "device/tensor.h"

namespace outrider {

// One output of a fused linear operation (q|k|v, gate|up, or a single projection), ended in the order of numerics.md
// section 2: y = t; + bias; (adapters); + residual.
struct LinearPart {
  const PackedMatrix* weight = nullptr;
  const float* bias = nullptr;       // [n] or null
  const Tensor* residual = nullptr;  // [T, n] or null; may be `out` itself
  Tensor out;                        // [T, n]
};

// sigmoid: a head of q is [2D], D queries and then D gates, which attention leaves alone and gated_linear() reads
// (models.md 3.2).
enum class AttentionGate : std::uint8_t { none, sigmoid };

// What attention needs of one layer: heads, RoPE, the optional per-head norms and output gate.
struct AttentionShape {
  std::int64_t heads = 0;        // H
  std::int64_t kv_heads = 0;     // K
  std::int64_t head_width = 0;   // D
  std::int64_t rotary_half = 0;  // R/2; 0: no RoPE in this layer
  RopePairs pairs = RopePairs::half_split;
  const float* q_norm = nullptr;  // [D] or null: rms norm per head before RoPE
  const float* k_norm = nullptr;
  float norm_eps = 0;
  AttentionGate gate = AttentionGate::none;

  std::int64_t q_stride() const { return gate == AttentionGate::none ? head_width : 2 * head_width; }  // of a head in q
};

// What the delta rule needs of one layer beside its RecurrentLayout.
struct DeltaShape {
  const float* conv = nullptr;     // [W][C]: by tap, the last one meets the current token
  const float* a_log = nullptr;    // [Hv]
  const float* dt_bias = nullptr;  // [Hv]
  float l2_eps = 0;                // of the norms of q and k
};

// cos and sin of this step's positions, shared by all layers: [T, R/2] each.
struct RopeAngles {
  Tensor cos, sin;
};

// The RoPE frequencies of one row: `inv_freq` [R/2] and the attention factor m; rows may differ (dynamic, longrope).
struct RowFrequencies {
  const float* inv_freq = nullptr;
  float factor = 1;
};

// Which fused operation a scratch plan is about.
enum class LinearOperation : std::uint8_t { linear, norm_linear, swiglu_linear, gated_linear, gated_norm_linear };

// The input form a weight reads, as one bit: its group width G (16, 32, 64, 128), or 1 for the f32 rows of dense
// weights.
inline std::uint32_t input_form(const PackedMatrix& weight) {
  return weight.coded() ? static_cast<std::uint32_t>(weight.group) : 1U;
}

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;  // "cpu avx2"
  virtual int threads() const = 0;
  // Calls task(i) for i in [0, count) on the device's host threads and returns when all are done; `task` must not
  // throw. Loading packs tensors with it.
  virtual void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& task) = 0;

  // out [T,E] = rows of `table` (dequantized embedding rows).
  virtual void embed(const PackedMatrix& table, std::span<const std::int32_t> ids, Tensor out) = 0;
  // out = rms(x; w, eps) per row; out may be x.
  virtual void rms_norm(Tensor x, const float* w, float eps, Tensor out) = 0;
  // All parts read the same x [T,K]; it is coded once per distinct group width among them (scratch from `arena`).
  // faults [T]: bits OR-ed per token.
  virtual void linear(Tensor x, std::span<const LinearPart> parts, Arena& arena, std::uint32_t* faults) = 0;
  // The same with x = rms(h; w, eps) computed and coded in one pass.
  virtual void norm_linear(Tensor h, const float* w, float eps, std::span<const LinearPart> parts, Arena& arena,
                           std::uint32_t* faults) = 0;
  // gate = silu(gate)*up.
  virtual void swiglu(Tensor gate, Tensor up) = 0;
  // part over x = silu(gate)*up (gate is overwritten): SwiGLU and the coding of its result in one pass.
  virtual void swiglu_linear(Tensor gate, Tensor up, const LinearPart& part, Arena& arena, std::uint32_t* faults) = 0;

  // part over x = o*sigmoid(gate) (o [T,H*D] is overwritten), the gates those of q [T,H*2D]: `shape` has a gate.
  virtual void gated_linear(const AttentionShape& shape, Tensor o, Tensor q, const LinearPart& part, Arena& arena,
                            std::uint32_t* faults) = 0;

  // angles for every token of the batch; `rows` has one entry per batch row.
  virtual void rope_angles(const RaggedBatch& batch, std::span<const RowFrequencies> rows, RopeAngles out) = 0;
  // Per token and head: optional norms, RoPE, scaling of q by D^-1/2 (in place in q, see attention()), and the store of
  // k and v [T,K*D] (k is overwritten) into the rows' blocks of `layer`. Adds the clamped values of token t to
  // clamps[t], unless that is null.
  virtual void rope_store(const AttentionShape& shape, const RopeAngles& angles, const RaggedBatch& batch,
                          const KvLayout& layout, std::int64_t layer, Tensor q, Tensor k, Tensor v,
                          std::uint32_t* faults, std::int64_t* clamps) = 0;
  // out [T,H*D]: every token attends to its own row's keys at positions <= its own. q [T,H*shape.q_stride()], of each
  // head the first D. Scratch from `arena`.
  virtual void attention(const AttentionShape& shape, const RaggedBatch& batch, const KvLayout& layout,
                         std::int64_t layer, Tensor q, Tensor out, Arena& arena) = 0;

  // The gated delta net between its projections (models.md 3.3): convolution, norms, gates and the delta rule in step
  // form, from and to the rows' slots of `layer`. p [T,C] raw: its last Hv*Dv columns become y, the others are spent.
  // a, b [T,Hv] raw, spent.
  virtual void gated_delta(const DeltaShape& shape, const RaggedBatch& batch, const RecurrentLayout& layout,
                           std::int64_t layer, Tensor p, Tensor a, Tensor b) = 0;
  // part over x = rms(y; w, eps)*silu(z) per head of `head_width` columns (z is overwritten).
  virtual void gated_norm_linear(Tensor y, Tensor z, const float* w, std::int64_t head_width, float eps,
                                 const LinearPart& part, Arena& arena, std::uint32_t* faults) = 0;

  // Rows `picks` of x into out [picks, width].
  virtual void gather(Tensor x, std::span<const std::int64_t> picks, Tensor out) = 0;
  // numerics.md section 7 per row of z [R,V]: max and ln of the f64 sum, so that logp_y = (z_y - max) - ln_sum.
  // A NaN or +inf in the row: ln_sum NaN. A row of -inf: both -inf.
  virtual void log_normalizers(Tensor z, float* max, double* ln_sum) = 0;
  // Bytes log_normalizers() keeps between calls of up to `rows` rows of `vocab` logits, and the taking of them
  // (MemoryPart::scratch) ahead of the first step. Without it the first call takes what it needs.
  virtual std::size_t normalizer_scratch_bytes(std::int64_t rows, std::int64_t vocab) const = 0;
  virtual void reserve_normalizers(std::int64_t rows, std::int64_t vocab) = 0;
  // Lowest id among the largest logits per row; NaN sets faults[row].
  virtual void argmax(Tensor z, std::int32_t* ids, std::uint32_t* faults) = 0;

  // Bytes a linear operation over `width` inputs takes from the arena at most, for the memory plan. `forms`: which
  // input forms its parts read, OR-ed from input_form() of each weight.
  virtual std::size_t linear_scratch_bytes(LinearOperation operation, std::int64_t tokens, std::int64_t width,
                                           std::uint32_t forms) const = 0;
  // The same of attention(), for any batch of at most these tokens, rows and context.
  virtual std::size_t attention_scratch_bytes(std::int64_t tokens, std::int64_t rows, const AttentionShape& shape,
                                              std::int64_t context_tokens) const = 0;
};

// threads 0: default_threads(). Uses kernels() (OUTRIDER_ISA).
std::unique_ptr<Device> make_cpu_device(int threads);

}  // namespace outrider
