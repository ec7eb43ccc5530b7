// Linear operations: the input is brought into the forms its parts read (codes per distinct group width, f32 rows),
// then all strips of all parts are one task list. Both are stages of one loop: one barrier per operation. A task ends
// its own outputs: bias, adapters, residual.
#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>

#include "device/cpu_device.h"

namespace outrider {
namespace {

// Rows of one product task: their codes stay in the L2 cache while the strips of a part pass by.
constexpr std::int64_t kRowBlock = 128;
constexpr std::int64_t kMaxParts = 8;
// Input values brought into form by the caller alone; above, the work is shared in pieces of about this size.
constexpr std::int64_t kInlineValues = 4096;
// What a waiting thread fetches of the next operation's weights: half of a small L2 cache.
constexpr std::size_t kReadAheadBytes = std::size_t{256} << 10;
constexpr std::array<int, 4> kGroupWidths = {16, 32, 64, 128};
constexpr std::int64_t kColumnUnit = 128;  // all group widths divide it

// The place of a width in kGroupWidths; its size: none.
std::size_t group_index(int group) {
  return static_cast<std::size_t>(std::find(kGroupWidths.begin(), kGroupWidths.end(), group) - kGroupWidths.begin());
}

std::size_t code_bytes(std::int64_t rows, std::int64_t width) { return static_cast<std::size_t>(rows * width) * 2; }
std::size_t scale_bytes(std::int64_t rows, std::int64_t width, int group) {
  return static_cast<std::size_t>(rows * (width / group)) * 2 * sizeof(float);
}

// Strip `strip` of a weight, as a matrix of its own.
PackedMatrix strip_view(const PackedMatrix& weight, std::int64_t strip) {
  PackedMatrix view = weight;
  view.n = std::min(PackedMatrix::kStripRows, weight.n - strip * PackedMatrix::kStripRows);
  view.data = weight.data + weight.offset(strip, 0, 0);
  return view;
}

}  // namespace

// One linear operation: input forms, then products.
class CpuDevice::LinearWork {
 public:
  LinearWork(CpuDevice& device, std::int64_t rows, std::int64_t width, std::span<const LinearPart> parts, Arena& arena)
      : device_(device), kernels_(device.kernels_), rows_(rows), width_(width), parts_(parts) {
    OUTRIDER_CHECK(!parts.empty() && parts.size() <= static_cast<std::size_t>(kMaxParts), "{} parts", parts.size());
    for (const LinearPart& part : parts) check_part(part);
    for (std::size_t g = 0; g < kGroupWidths.size(); ++g)
      if ((forms_ & static_cast<std::uint32_t>(kGroupWidths[g])) != 0)
        coded_[g] = {reinterpret_cast<std::int16_t*>(arena.take(code_bytes(rows, width))),
                     reinterpret_cast<float*>(arena.take(scale_bytes(rows, width, kGroupWidths[g]))), rows};
  }

  bool reads_floats() const { return (forms_ & 1U) != 0; }
  bool reads_codes() const { return (forms_ & ~1U) != 0; }
  void set_floats(Tensor x) { floats_ = x; }

  // Columns [begin, end) of token t, made by the caller's source, into every code form. `x` points to column `begin`.
  void code(const float* x, std::int64_t t, Range columns, std::uint32_t* faults) {
    std::uint32_t fault = 0;
    for (std::size_t g = 0; g < kGroupWidths.size(); ++g) {
      if (coded_[g].codes == nullptr) continue;
      const std::int64_t group = kGroupWidths[g], first = columns.begin / group;
      const CodedRows row = {coded_[g].codes + (first * rows_ + t) * group, coded_[g].scales + (first * rows_ + t) * 2,
                             rows_};
      kernels_.code_rows(x, width_, columns.end - columns.begin, kGroupWidths[g], {0, 1}, row, &fault);
    }
    // Tasks of one token may be different threads' when columns are split.
    if (fault != 0) std::atomic_ref(faults[t]).fetch_or(fault, std::memory_order_relaxed);
  }

  // Runs fill(t, columns, thread) over all tokens, in pieces of columns where tokens are few, then the products. Pieces
  // begin at multiples of `unit` columns, itself a multiple of kColumnUnit.
  template <class Fill>
  void run_by_columns(Fill&& fill, std::int64_t unit = kColumnUnit) {
    std::int64_t pieces = 1;
    if (rows_ * width_ > kInlineValues)
      pieces = std::min(ceil_div(width_, unit), ceil_div(std::int64_t{4} * device_.threads(), rows_));
    run(ceil_div(ceil_div(width_, pieces), unit) * unit, fill);
  }

  // The same where a token cannot be split.
  template <class Fill>
  void run_by_rows(Fill&& fill) {
    run(width_, fill);
  }

  // The products alone: every part reads the f32 rows.
  void run() {
    run_stages(0, [](std::int64_t, int) {});
  }

 private:
  // Fills in pieces of `columns`, then multiplies.
  template <class Fill>
  void run(std::int64_t columns, Fill& fill) {
    const std::int64_t pieces = ceil_div(width_, columns), step = tokens_per_task(columns);
    run_stages(ceil_div(rows_, step) * pieces, [&](std::int64_t index, int thread) {
      const std::int64_t first = index / pieces * step, begin = index % pieces * columns;
      for (std::int64_t t = first; t < std::min(rows_, first + step); ++t)
        fill(t, Range{begin, std::min(width_, begin + columns)}, thread);
    });
  }

  // Stage 1: fill(index, thread) for [0, fills). Stage 2: all strips over all blocks of rows.
  template <class Fill>
  void run_stages(std::int64_t fills, Fill&& fill) {
    blocks_ = ceil_div(rows_, kRowBlock);
    for (std::size_t p = 0; p < parts_.size(); ++p) first_strip_[p + 1] = first_strip_[p] + parts_[p].weight->strips();
    // A single fill is worth no wait of the others: the caller does it before they wake.
    if (fills == 1) {
      fill(std::int64_t{0}, 0);
      fills = 0;
    }
    const std::int64_t tasks = blocks_ * first_strip_[parts_.size()];
    device_.shares_.deal(tasks);
    read_ahead();
    StageGate filled(fills);
    device_.parallel(fills + tasks, [&](std::int64_t index, int thread) {
      if (index < fills) {
        fill(index, thread);
        filled.arrive();
        return;
      }
      filled.wait();
      const Task task = task_at(device_.shares_.take(thread));
      multiply_strip(parts_[task.part], task.strip, task.rows);
    });
  }

  struct Task {
    std::size_t part;
    std::int64_t strip;
    Range rows;
  };

  // Strips follow each other, then blocks of rows: threads on different blocks meet the same strips in the shared
  // cache.
  Task task_at(std::int64_t task) const {
    const std::int64_t strips = first_strip_[parts_.size()], block_rows = ceil_div(rows_, blocks_);
    const std::int64_t strip = task % strips, first = task / strips * block_rows;
    std::size_t p = 0;
    while (strip >= first_strip_[p + 1]) ++p;
    return {p, strip - first_strip_[p], {first, std::min(rows_, first + block_rows)}};
  }

  // Tells the pool where the threads' shares of the operation after this one begin, by what followed it last time.
  void read_ahead() {
    WeightOrder& order = device_.weight_order_;
    const std::int64_t tasks = blocks_ * first_strip_[parts_.size()];
    order.next->resize(static_cast<std::size_t>(device_.threads()));
    for (std::size_t t = 0; t < order.next->size(); ++t) {
      const std::int64_t begin = device_.shares_.begin(static_cast<int>(t));
      const Task task = task_at(std::min(begin, tasks - 1));
      const PackedMatrix& w = *parts_[task.part].weight;
      (*order.next)[t] = w.data + w.offset(task.strip, 0, 0);
    }
    order.next = &order.followers[parts_[0].weight->data];
    if (!order.next->empty()) device_.pool_.read_ahead(*order.next, kReadAheadBytes);
  }

  void check_part(const LinearPart& part) {
    OUTRIDER_CHECK(part.weight != nullptr && part.weight->data != nullptr, "a part without a weight");
    const PackedMatrix& w = *part.weight;
    OUTRIDER_CHECK(w.k == width_, "weight of {} inputs, input of {}", w.k, width_);
    OUTRIDER_CHECK(part.out.rows == rows_ && part.out.width == w.n && part.out.stride >= w.n,
                   "output [{}, {}], expected [{}, {}]", part.out.rows, part.out.width, rows_, w.n);
    if (part.residual != nullptr)
      OUTRIDER_CHECK(part.residual->rows == rows_ && part.residual->width == w.n,
                     "residual [{}, {}], expected [{}, {}]", part.residual->rows, part.residual->width, rows_, w.n);
    if (w.coded())
      OUTRIDER_CHECK(group_index(w.group) < kGroupWidths.size() && w.k % w.group == 0, "{} inputs in groups of {}", w.k,
                     w.group);
    forms_ |= input_form(w);
  }

  std::int64_t tokens_per_task(std::int64_t columns) const {
    if (rows_ * columns <= kInlineValues) return rows_;
    return std::clamp<std::int64_t>(ceil_div(rows_, std::int64_t{4} * device_.threads()), 1,
                                    std::max<std::int64_t>(1, kInlineValues / columns));
  }

  // y = t into the output, or beside it when the residual lies there, then the end of the operation in the order of
  // numerics.md section 2: bias, adapters (their place is between the two), residual.
  void multiply_strip(const LinearPart& part, std::int64_t strip, Range rows) const {
    const PackedMatrix w = strip_view(*part.weight, strip);
    const std::int64_t column = strip * PackedMatrix::kStripRows, count = rows.end - rows.begin;
    const Tensor out = part.out.slice(rows.begin, count).columns(column, w.n);
    alignas(64) float beside[kRowBlock * PackedMatrix::kStripRows];
    const bool aliased = part.residual != nullptr && part.residual->data == part.out.data;
    const Tensor y = aliased ? Tensor{beside, count, w.n, PackedMatrix::kStripRows} : out;
    if (w.kind == PackedKind::dense) {
      kernels_.dense_product(w, {0, 1}, floats_.row(rows.begin), floats_.stride, {0, count}, y.data, y.stride);
    } else {
      const CodedRows& all = coded_[group_index(w.group)];
      const CodedRows block = {all.codes + rows.begin * w.group, all.scales + rows.begin * 2, all.rows};
      kernels_.product(w, {0, 1}, block, {0, count}, y.data, y.stride);
    }
    for (std::int64_t r = 0; r < count; ++r) {
      if (part.bias != nullptr) kernels_.add(part.bias + column, y.row(r), w.n, y.row(r));
      if (part.residual == nullptr) continue;
      const float* residual = part.residual->row(rows.begin + r) + column;
      if (aliased)
        kernels_.add(y.row(r), residual, w.n, out.row(r));
      else
        kernels_.add(residual, y.row(r), w.n, out.row(r));
    }
  }

  CpuDevice& device_;
  const KernelTable& kernels_;
  std::int64_t rows_, width_;
  std::span<const LinearPart> parts_;
  std::uint32_t forms_ = 0;
  std::int64_t blocks_ = 0;
  std::array<std::int64_t, kMaxParts + 1> first_strip_{};  // of each part in the list of all strips
  std::array<CodedRows, kGroupWidths.size()> coded_{};
  Tensor floats_;
};

void CpuDevice::linear(Tensor x, std::span<const LinearPart> parts, Arena& arena, std::uint32_t* faults) {
  check_float_environment();
  if (x.rows == 0) return;
  Arena::Scope scope(arena);
  LinearWork work(*this, x.rows, x.width, parts, arena);
  work.set_floats(x);
  if (!work.reads_codes()) return work.run();
  work.run_by_columns(
      [&](std::int64_t t, Range columns, int) { work.code(x.row(t) + columns.begin, t, columns, faults); });
}

void CpuDevice::norm_linear(Tensor h, const float* w, float eps, std::span<const LinearPart> parts, Arena& arena,
                            std::uint32_t* faults) {
  check_float_environment();
  if (h.rows == 0) return;
  Arena::Scope scope(arena);
  LinearWork work(*this, h.rows, h.width, parts, arena);
  const bool keep = work.reads_floats();
  // Normalized rows are kept only for dense parts; else each thread reuses one.
  const Tensor x = arena.tensor(keep ? h.rows : threads(), h.width);
  if (keep) work.set_floats(x);
  work.run_by_rows([&](std::int64_t t, Range columns, int thread) {
    float* row = x.row(keep ? t : thread);
    kernels_.rms_norm(h.row(t), w, h.width, eps, row);
    if (work.reads_codes()) work.code(row, t, columns, faults);
  });
}

void CpuDevice::swiglu_linear(Tensor gate, Tensor up, const LinearPart& part, Arena& arena, std::uint32_t* faults) {
  check_float_environment();
  OUTRIDER_CHECK(gate.rows == up.rows && gate.width == up.width, "gate [{}, {}], up [{}, {}]", gate.rows, gate.width,
                 up.rows, up.width);
  if (gate.rows == 0) return;
  Arena::Scope scope(arena);
  LinearWork work(*this, gate.rows, gate.width, {&part, 1}, arena);
  work.set_floats(gate);
  work.run_by_columns([&](std::int64_t t, Range columns, int) {
    float* x = gate.row(t) + columns.begin;
    kernels_.silu_mul(x, up.row(t) + columns.begin, columns.end - columns.begin, x);
    if (work.reads_codes()) work.code(x, t, columns, faults);
  });
}

void CpuDevice::gated_linear(const AttentionShape& shape, Tensor o, Tensor q, const LinearPart& part, Arena& arena,
                             std::uint32_t* faults) {
  check_float_environment();
  const std::int64_t width = shape.head_width;
  OUTRIDER_CHECK(shape.gate == AttentionGate::sigmoid, "an attention without a gate");
  OUTRIDER_CHECK(o.rows == q.rows && o.width == shape.heads * width && q.width == shape.heads * shape.q_stride(),
                 "o [{}, {}], q [{}, {}]", o.rows, o.width, q.rows, q.width);
  if (o.rows == 0) return;
  Arena::Scope scope(arena);
  LinearWork work(*this, o.rows, o.width, {&part, 1}, arena);
  work.set_floats(o);
  work.run_by_columns([&](std::int64_t t, Range columns, int) {
    float* const x = o.row(t);
    for (std::int64_t c = columns.begin; c < columns.end;) {
      const std::int64_t within = c % width, count = std::min(columns.end - c, width - within);
      const float* gate = q.row(t) + c / width * shape.q_stride() + width + within;
      kernels_.sigmoid_mul(gate, x + c, count, x + c);
      c += count;
    }
    if (work.reads_codes()) work.code(x + columns.begin, t, columns, faults);
  });
}

void CpuDevice::gated_norm_linear(Tensor y, Tensor z, const float* w, std::int64_t head_width, float eps,
                                  const LinearPart& part, Arena& arena, std::uint32_t* faults) {
  check_float_environment();
  OUTRIDER_CHECK(y.rows == z.rows && y.width == z.width && head_width > 0 && y.width % head_width == 0,
                 "y [{}, {}], z [{}, {}], heads of {}", y.rows, y.width, z.rows, z.width, head_width);
  if (y.rows == 0) return;
  Arena::Scope scope(arena);
  LinearWork work(*this, y.rows, y.width, {&part, 1}, arena);
  work.set_floats(z);
  const auto fill = [&](std::int64_t t, Range columns, int) {
    for (std::int64_t c = columns.begin; c < columns.end; c += head_width)
      kernels_.gated_norm(y.row(t) + c, z.row(t) + c, w, head_width, eps, z.row(t) + c);
    if (work.reads_codes()) work.code(z.row(t) + columns.begin, t, columns, faults);
  };
  work.run_by_columns(fill, std::lcm(kColumnUnit, head_width));
}

std::size_t CpuDevice::linear_scratch_bytes(LinearOperation operation, std::int64_t tokens, std::int64_t width,
                                            std::uint32_t forms) const {
  std::size_t bytes = 0;
  for (const int group : kGroupWidths)
    if ((forms & static_cast<std::uint32_t>(group)) != 0)
      bytes += arena_bytes(code_bytes(tokens, width)) + arena_bytes(scale_bytes(tokens, width, group));
  if (operation == LinearOperation::norm_linear) bytes += tensor_bytes((forms & 1U) != 0 ? tokens : threads(), width);
  return bytes;
}

}  // namespace outrider
