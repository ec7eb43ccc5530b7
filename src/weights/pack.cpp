#include "weights/pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "weights/quantized.h"

namespace outrider {
namespace {

constexpr std::int64_t kRows = PackedMatrix::kPanelRows;

// Eight codes of one row, `kBits` bits of each from bit `shift` on, as they lie in a word: the even ones from bit 0,
// the odd ones from bit 16 (code 2p+e at bits b*p + 16e).
template <int kBits>
std::uint32_t eight_codes(const std::uint8_t* codes, int shift) {
  constexpr std::uint64_t kOne = (1u << kBits) - 1, kPair = (1u << 2 * kBits) - 1;
  std::uint64_t v;
  std::memcpy(&v, codes, 8);
  const auto gather = [](std::uint64_t x) {  // codes at bits 0, 16, 32, 48 to bits 0, b, 2b, 3b
    x &= kOne * 0x0001000100010001ull;
    x |= x >> (16 - kBits);
    return static_cast<std::uint32_t>((x & kPair) | (x >> (32 - 2 * kBits) & kPair << 2 * kBits));
  };
  return gather(v >> shift) | gather(v >> (8 + shift)) << 16;
}

// The first 32/kBits codes as a word.
template <int kBits>
std::uint32_t word_of(const std::uint8_t* codes, int shift) {
  if constexpr (kBits == 8) {  // the middle two of four codes change places
    std::uint32_t v;
    std::memcpy(&v, codes, 4);
    return (v & 0xFF0000FFu) | (v >> 8 & 0x0000FF00u) | (v << 8 & 0x00FF0000u);
  } else {
    std::uint32_t word = 0;
    for (int i = 0; i < 4 / kBits; ++i) word |= eight_codes<kBits>(codes + 8 * i, shift) << (4 * kBits * i);
    return word;
  }
}

template <int kBits>
void store_plane(const std::uint8_t* codes, int shift, std::int64_t group, std::byte* words) {
  for (std::int64_t j = 0; j < group; j += 32 / kBits, words += kRows * 4) {
    const std::uint32_t word = word_of<kBits>(codes + j, shift);
    std::memcpy(words, &word, 4);
  }
}

// Bits [shift, shift + bits) of the `group` codes of one row, into its lane of a plane that begins at `words`.
void store_plane(const std::uint8_t* codes, int bits, int shift, std::int64_t group, std::byte* words) {
  switch (bits) {
    case 1:
      return store_plane<1>(codes, shift, group, words);
    case 2:
      return store_plane<2>(codes, shift, group, words);
    case 4:
      return store_plane<4>(codes, shift, group, words);
    case 8:
      return store_plane<8>(codes, shift, group, words);
    default:
      OUTRIDER_CHECK(false, "a plane of {} bits", bits);
  }
}

// One panel of 16 rows as read: [16][k] codes and [16][k/G] scales (e2m1: as bytes of the file, then f32) and biases.
struct PanelRows {
  explicit PanelRows(const PackedMatrix& form) {
    const auto scale_bytes = static_cast<std::size_t>(kRows * form.groups()) * size_of(form.scale_type);
    codes.resize(static_cast<std::size_t>(kRows * form.k));
    scales.resize(scale_bytes);
    if (form.kind == PackedKind::affine) biases.resize(scale_bytes);
    if (form.kind == PackedKind::e2m1) stored_scales.resize(static_cast<std::size_t>(form.groups()));
  }
  std::vector<std::uint8_t> codes, stored_scales;
  std::vector<std::byte> scales, biases;
};

void read_row(const MatrixRows& rows, const PackedMatrix& form, std::int64_t row, std::int64_t lane, PanelRows& panel) {
  const std::int64_t groups = form.groups(), at = lane * groups * static_cast<std::int64_t>(size_of(form.scale_type));
  std::uint8_t* codes = panel.codes.data() + lane * form.k;
  if (form.kind == PackedKind::affine)
    return rows.affine(row, codes, panel.scales.data() + at, panel.biases.data() + at);
  rows.e2m1(row, codes, panel.stored_scales.data());
  for (std::int64_t g = 0; g < groups; ++g)
    store_float(panel.scales.data() + at + 4 * g, FloatType::f32,
                rows.fp4.halved(panel.stored_scales[static_cast<std::size_t>(g)]));
}

void store_block(const PackedMatrix& form, const PanelRows& panel, std::int64_t group, std::int64_t live_rows,
                 std::byte* out) {
  const std::size_t width = size_of(form.scale_type);
  const std::int64_t groups = form.groups();
  const Planes planes = planes_of(form.bits);
  std::byte* low = out + form.head_bytes();
  std::byte* high = low + form.group * planes.low / 32 * kRows * 4;
  for (std::int64_t r = 0; r < live_rows; ++r) {
    const std::size_t at = static_cast<std::size_t>(r * groups + group) * width;
    std::memcpy(out + static_cast<std::size_t>(r) * width, panel.scales.data() + at, width);
    if (!panel.biases.empty())
      std::memcpy(out + static_cast<std::size_t>(kRows + r) * width, panel.biases.data() + at, width);
    const std::uint8_t* codes = panel.codes.data() + r * form.k + group * form.group;
    store_plane(codes, planes.low, 0, form.group, low + 4 * r);
    if (planes.high != 0) store_plane(codes, planes.high, planes.low, form.group, high + 4 * r);
  }
}

void pack_coded_panel(const MatrixRows& rows, const PackedMatrix& form, std::int64_t strip, std::int64_t panel,
                      PanelRows& scratch, std::byte* out) {
  const std::int64_t first = strip * PackedMatrix::kStripRows + panel * kRows;
  const std::int64_t live = std::min(kRows, form.n - first);
  for (std::int64_t r = 0; r < live; ++r) read_row(rows, form, first + r, r, scratch);
  for (std::int64_t g = 0; g < form.groups(); ++g)
    store_block(form, scratch, g, live, out + form.offset(strip, g, panel));
}

template <class Value>
void pack_dense_panel(const PackedMatrix& form, std::int64_t strip, std::int64_t panel, std::int64_t live,
                      const Value* values, std::byte* out) {
  for (std::int64_t d = 0; d < form.k; ++d) {
    Value line[kRows] = {};
    for (std::int64_t r = 0; r < live; ++r) line[r] = values[r * form.k + d];
    std::memcpy(out + form.offset(strip, d, panel), line, sizeof line);
  }
}

void pack_dense_panel(const MatrixRows& rows, const PackedMatrix& form, std::int64_t strip, std::int64_t panel,
                      std::vector<std::byte>& scratch, std::byte* out) {
  const std::int64_t first = strip * PackedMatrix::kStripRows + panel * kRows;
  const std::int64_t live = std::min(kRows, form.n - first);
  const bool as_stored = rows.dense && rows.info.type == form.scale_type;
  for (std::int64_t r = 0; r < live; ++r) {
    std::byte* to = scratch.data() + static_cast<std::size_t>(r * form.k) * size_of(form.scale_type);
    if (as_stored)
      rows.dense(first + r, to);
    else
      read_row_f32(rows, first + r, {reinterpret_cast<float*>(to), static_cast<std::size_t>(form.k)});
  }
  if (form.scale_type == FloatType::f32)
    pack_dense_panel(form, strip, panel, live, reinterpret_cast<const std::uint32_t*>(scratch.data()), out);
  else
    pack_dense_panel(form, strip, panel, live, reinterpret_cast<const std::uint16_t*>(scratch.data()), out);
}

}  // namespace

PackedMatrix packed_form(const ModuleInfo& module, Precision precision) {
  PackedMatrix form;
  form.n = module.n;
  form.k = module.k;
  if (precision == Precision::f32) return form;  // dense f32
  form.kind = module.kind;
  form.scale_type = module.type;
  if (module.kind != PackedKind::dense) {
    form.bits = module.bits == 1 ? 2 : module.bits == 7 ? 8 : module.bits;
    form.group = module.group;
  }
  return form;
}

void pack_strips(const MatrixRows& rows, const PackedMatrix& form, std::byte* out, std::int64_t begin,
                 std::int64_t end) {
  OUTRIDER_CHECK((rows.affine ? 1 : 0) + (rows.e2m1 ? 1 : 0) + (rows.dense ? 1 : 0) == 1);
  std::optional<PanelRows> coded;
  std::vector<std::byte> dense;
  if (form.coded()) {
    OUTRIDER_CHECK((form.kind == PackedKind::affine ? bool(rows.affine) : bool(rows.e2m1)) && form.k % form.group == 0);
    coded.emplace(form);
  } else {
    dense.resize(static_cast<std::size_t>(kRows * form.k) * size_of(form.scale_type));
  }
  for (std::int64_t strip = begin; strip < end; ++strip) {
    for (std::int64_t panel = 0; panel < form.panels_of(strip); ++panel) {
      if (coded)
        pack_coded_panel(rows, form, strip, panel, *coded, out);
      else
        pack_dense_panel(rows, form, strip, panel, dense, out);
    }
  }
  if (rows.drop) rows.drop(begin * PackedMatrix::kStripRows, std::min(form.n, end * PackedMatrix::kStripRows));
}

void run_tasks(const ParallelFor& parallel, std::int64_t count, const std::function<void(std::int64_t)>& task) {
  if (!parallel || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  std::mutex lock;
  std::exception_ptr failure;
  parallel(count, [&](std::int64_t i) {
    try {
      task(i);
    } catch (...) {
      const std::lock_guard guard(lock);
      if (!failure) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

PackedWeight pack(const MatrixRows& rows, Precision precision, const ParallelFor& parallel) {
  PackedWeight packed;
  packed.view = packed_form(rows.info, precision);
  packed.storage = AlignedBuffer(packed.view.bytes(), MemoryPart::weights);
  packed.view.data = packed.storage.data();
  // A task is about 1 MiB of packed bytes: enough to hide the cost of a task, few enough for an even split.
  const std::int64_t strips = packed.view.strips();
  const std::int64_t strip_bytes = strips == 0 ? 1 : static_cast<std::int64_t>(packed.view.bytes()) / strips + 1;
  const std::int64_t per_task = std::max<std::int64_t>(1, (1 << 20) / strip_bytes);
  run_tasks(parallel, (strips + per_task - 1) / per_task, [&](std::int64_t i) {
    pack_strips(rows, packed.view, packed.storage.data(), i * per_task, std::min(strips, (i + 1) * per_task));
  });
  // Reading maps pages around the one wanted, also behind the rows dropped so far.
  if (rows.drop) rows.drop(0, rows.info.n);
  return packed;
}

void read_row_f32(const MatrixRows& rows, std::int64_t row, std::span<float> values) {
  const ModuleInfo& info = rows.info;
  const auto k = static_cast<std::size_t>(info.k);
  const std::size_t width = size_of(info.type);
  if (rows.dense) {
    std::vector<std::byte> stored(k * width);
    rows.dense(row, stored.data());
    for (std::size_t j = 0; j < k; ++j) values[j] = load_float(stored.data() + j * width, info.type);
    return;
  }
  const auto group = static_cast<std::size_t>(info.group);
  std::vector<std::uint8_t> codes(k);
  if (rows.e2m1) {
    std::vector<std::uint8_t> stored(k / group);
    rows.e2m1(row, codes.data(), stored.data());
    for (std::size_t j = 0; j < k; ++j)
      values[j] = static_cast<float>(kE2m1Doubled[codes[j]]) * rows.fp4.halved(stored[j / group]);
    return;
  }
  std::vector<std::byte> scales(k / group * width), biases(k / group * width);
  rows.affine(row, codes.data(), scales.data(), biases.data());
  for (std::size_t g = 0; g < k / group; ++g) {
    const float scale = load_float(scales.data() + g * width, info.type);
    const float bias = load_float(biases.data() + g * width, info.type);
    for (std::size_t j = g * group; j < (g + 1) * group; ++j)
      values[j] = std::fma(static_cast<float>(codes[j]), scale, bias);
  }
}

MatrixRows rows_of(const AffineMatrix& m) {
  const auto width = static_cast<std::int64_t>(size_of(m.type));
  const std::int64_t groups = m.k / m.group;
  MatrixRows rows;
  rows.info = {PackedKind::affine, m.type, m.bits, m.group, m.n, m.k, false};
  rows.affine = [m, width, groups](std::int64_t row, std::uint8_t* codes, std::byte* scales, std::byte* biases) {
    unpack_codes(m.weight + row * code_bytes(m.k, m.bits), m.bits, {codes, static_cast<std::size_t>(m.k)});
    std::copy_n(m.scales + row * groups * width, groups * width, scales);  // width 0 is allowed: not memcpy
    std::copy_n(m.biases + row * groups * width, groups * width, biases);
  };
  return rows;
}

MatrixRows rows_of(const E2m1Matrix& m) {
  const std::int64_t groups = m.k / group_of(m.fp4.mode);
  MatrixRows rows;
  rows.info = {PackedKind::e2m1, FloatType::f32, 4, group_of(m.fp4.mode), m.n, m.k, false};
  rows.fp4 = m.fp4;
  rows.e2m1 = [m, groups](std::int64_t row, std::uint8_t* codes, std::uint8_t* scales) {
    unpack_codes(m.weight + row * code_bytes(m.k, 4), 4, {codes, static_cast<std::size_t>(m.k)});
    std::copy_n(reinterpret_cast<const std::uint8_t*>(m.scales) + row * groups, groups, scales);
  };
  return rows;
}

MatrixRows rows_of(const DenseMatrix& m) {
  MatrixRows rows;
  rows.info = {PackedKind::dense, m.type, 0, 0, m.n, m.k, false};
  rows.dense = [m, bytes = static_cast<std::size_t>(m.k) * size_of(m.type)](std::int64_t row, std::byte* values) {
    std::copy_n(m.values + static_cast<std::size_t>(row) * bytes, bytes, values);
  };
  return rows;
}

PackedWeight pack_affine(const AffineMatrix& matrix) { return pack(rows_of(matrix), Precision::packed, {}); }
PackedWeight pack_dense(const DenseMatrix& matrix) { return pack(rows_of(matrix), Precision::packed, {}); }

}  // namespace outrider
