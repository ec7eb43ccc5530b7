// Tensor views, the arena scratch comes from, and the ragged batch a step runs over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/memory.h"
#include "kernels/kernel_table.h"

namespace outrider {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
// KV blocks that hold this many positions.
constexpr std::int64_t kv_blocks_for(std::int64_t positions) { return ceil_div(positions, kBlockKeys); }

// A borrowed f32 matrix [rows, width], row r at data + r*stride. Never stored beyond the step that made it.
struct Tensor {
  float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;

  float* row(std::int64_t r) const { return data + r * stride; }
  // Columns [begin, begin + columns).
  Tensor columns(std::int64_t begin, std::int64_t count) const { return {data + begin, rows, count, stride}; }
  // Rows [begin, begin + count).
  Tensor slice(std::int64_t begin, std::int64_t count) const { return {data + begin * stride, count, width, stride}; }
};

// Bytes Arena::take() moves by for a request of `bytes`: what plans add up.
constexpr std::size_t arena_bytes(std::size_t bytes) {
  return (bytes + AlignedBuffer::kLine - 1) / AlignedBuffer::kLine * AlignedBuffer::kLine;
}

// Bytes Arena::tensor() takes.
constexpr std::size_t tensor_bytes(std::int64_t rows, std::int64_t width) {
  return arena_bytes(static_cast<std::size_t>(rows * width) * sizeof(float));
}

// Scratch of one step: sized once from the model and the step limits (memory plan part "scratch"), handed out in
// 64-byte aligned pieces, given back by scope. Running out is a bug in the plan: CHECK.
class Arena {
 public:
  explicit Arena(std::size_t bytes) : buffer_(bytes, MemoryPart::scratch) {}

  std::byte* take(std::size_t bytes) {
    const std::size_t rounded = arena_bytes(bytes);
    OUTRIDER_CHECK(used_ + rounded <= buffer_.size(), "arena of {} bytes, {} used, {} asked", buffer_.size(), used_,
                   rounded);
    std::byte* piece = buffer_.data() + used_;
    used_ += rounded;
    peak_ = used_ > peak_ ? used_ : peak_;
    return piece;
  }
  template <class T>
  T* take_of(std::int64_t count) {
    return reinterpret_cast<T*>(take(static_cast<std::size_t>(count) * sizeof(T)));
  }
  Tensor tensor(std::int64_t rows, std::int64_t width) { return {take_of<float>(rows * width), rows, width, width}; }

  std::size_t size() const { return buffer_.size(); }
  std::size_t peak() const { return peak_; }

  // Gives back what was taken since its construction.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Scope() { arena_.used_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    std::size_t mark_;
  };

 private:
  AlignedBuffer buffer_;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
};

// Where the planes of (layer, kv head) lie in one KV block of 64 positions, all attention layers of the model together:
// [layer][kv head]{ K [D][64], V [64][D] } of `type` (numerics.md section 5).
struct KvLayout {
  std::int64_t layers = 0;      // attention layers
  std::int64_t kv_heads = 0;    // K
  std::int64_t head_width = 0;  // D
  FloatType type = FloatType::f16;

  std::size_t plane_bytes() const { return static_cast<std::size_t>(head_width * kBlockKeys) * size_of(type); }
  std::size_t block_bytes() const { return static_cast<std::size_t>(layers * kv_heads) * 2 * plane_bytes(); }
  std::size_t token_bytes() const { return block_bytes() / kBlockKeys; }
  std::size_t k_offset(std::int64_t layer, std::int64_t head) const {
    return static_cast<std::size_t>(layer * kv_heads + head) * 2 * plane_bytes();
  }
  std::size_t v_offset(std::int64_t layer, std::int64_t head) const { return k_offset(layer, head) + plane_bytes(); }
};

// Where the state of a recurrent layer lies in one slot, all recurrent layers of the model together: [layer]{ S
// [Hv][Dk][Dv], window [W-1][C] } f32; the window holds the last W-1 inputs of the convolution, oldest first. A log
// holds of each token and layer what it adds to a state: [token][layer]{ p [C], k [Hk][Dk], delta [Hv][Dv], g [Hv] }
// f32, p the raw inputs of the convolution and the others as in numerics.md section 6.
struct RecurrentLayout {
  std::int64_t layers = 0;       // recurrent layers; 0: the model has none
  std::int64_t key_heads = 0;    // Hk
  std::int64_t value_heads = 0;  // Hv
  std::int64_t key_width = 0;    // Dk
  std::int64_t value_width = 0;  // Dv
  std::int64_t taps = 0;         // W

  std::int64_t channels() const { return 2 * key_heads * key_width + value_heads * value_width; }  // C
  std::int64_t state_floats() const { return value_heads * key_width * value_width; }
  std::int64_t layer_floats() const { return state_floats() + (taps - 1) * channels(); }
  std::size_t slot_bytes() const { return static_cast<std::size_t>(layers * layer_floats()) * sizeof(float); }
  std::size_t state_offset(std::int64_t layer) const {
    return static_cast<std::size_t>(layer * layer_floats()) * sizeof(float);
  }
  std::size_t window_offset(std::int64_t layer) const {
    return state_offset(layer) + static_cast<std::size_t>(state_floats()) * sizeof(float);
  }
  // Of a log, in floats: one token of one layer, from one token to the next, and where token and layer begin.
  std::int64_t log_entry() const { return channels() + key_heads * key_width + value_heads * (value_width + 1); }
  std::int64_t log_stride() const { return layers * log_entry(); }
  std::int64_t log_at(std::int64_t token, std::int64_t layer) const {
    return token * log_stride() + layer * log_entry();
  }
  std::size_t log_bytes(std::int64_t tokens) const {
    return static_cast<std::size_t>(tokens * log_stride()) * sizeof(float);
  }
};

// Tokens [first, first + tokens) of a log: their writes turn the state of a slot into that after them.
struct RecurrentLog {
  const std::byte* data = nullptr;
  std::int64_t first = 0, tokens = 0;
};

// Where a step reads and writes a row's recurrent state. `read`: the slot of the state before the step, never written,
// which `log` follows; null: zeros, without a log. `stores`: ascending, the last one after all of the row's tokens; no
// two of a batch are the same. A verify window, whose round may keep any of its tokens, stores the state after its
// first token and gives the log of those behind it, token i at i - 1, to `write_log`; then the last store may come
// earlier. Replaying a log takes the very steps of its tokens: the same bits as a slot per token, at a fraction of the
// traffic.
struct RecurrentAccess {
  const std::byte* read = nullptr;
  std::span<const RecurrentStore> stores;
  RecurrentLog log = {};
  std::byte* write_log = nullptr;
};

// One row of a ragged batch: flat tokens [begin, end) stand at absolute positions position, position+1, ...
// `blocks` are the row's own KV blocks covering [0, position + end - begin), writable from `position` on.
struct BatchRow {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t position = 0;
  std::int64_t planned_tokens = 0;  // length S fixed at admission: dynamic and longrope choose by it (models.md 2.2)
  std::span<std::byte* const> blocks;
  RecurrentAccess recurrent = {};  // of models with recurrent layers
  // Oldest position that attention sees, < 64. Draft rows keep position 0 empty (runtime.md section 4), zeroed.
  std::int64_t first_key = 0;
};

// A step's input: T flat tokens cut into rows, no padding, no mask (design.md section 3). Borrowed.
struct RaggedBatch {
  std::span<const std::int32_t> tokens;
  std::span<const BatchRow> rows;
  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
};

}  // namespace outrider
