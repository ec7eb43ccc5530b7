#include "weights/pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>

#include "base/error.h"
#include "weights/quantized.h"

namespace outrider {
namespace {

constexpr std::int64_t kRows = PackedMatrix::kPanelRows;

// Eight codes of one row as the word of a 4-bit panel: code 2p+e at bits 4p + 16e.
std::uint32_t word4(const std::uint8_t* codes) {
  std::uint64_t v;
  std::memcpy(&v, codes, 8);
  const auto gather = [](std::uint64_t x) {  // nibbles at bits 0, 16, 32, 48 to bits 0, 4, 8, 12
    x &= 0x000F000F000F000Full;
    x |= x >> 12;
    return static_cast<std::uint32_t>((x & 0xFFu) | (x >> 24 & 0xFF00u));
  };
  return gather(v) | gather(v >> 8) << 16;
}

// Four codes as the word of an 8-bit panel: code 2p+e at bits 8p + 16e, so the middle two change places.
std::uint32_t word8(const std::uint8_t* codes) {
  std::uint32_t v;
  std::memcpy(&v, codes, 4);
  return (v & 0xFF0000FFu) | (v >> 8 & 0x0000FF00u) | (v << 8 & 0x00FF0000u);
}

// One panel of 16 rows as read: [16][k] codes and [16][k/G] scales and biases.
struct PanelRows {
  std::vector<std::uint8_t> codes;
  std::vector<std::byte> scales, biases;
};

void store_affine_block(const PackedMatrix& form, const PanelRows& panel, std::int64_t group, std::int64_t live_rows,
                        std::byte* out) {
  const auto width = static_cast<std::int64_t>(size_of(form.scale_type));
  const std::int64_t groups = form.groups();
  std::byte* biases = out + kRows * width;
  std::byte* words = biases + kRows * width;
  const std::int64_t codes_per_word = 32 / form.bits;
  const std::int64_t word_count = form.group / codes_per_word;
  for (std::int64_t r = 0; r < live_rows; ++r) {
    std::memcpy(out + r * width, panel.scales.data() + (r * groups + group) * width, static_cast<std::size_t>(width));
    std::memcpy(biases + r * width, panel.biases.data() + (r * groups + group) * width,
                static_cast<std::size_t>(width));
    const std::uint8_t* codes = panel.codes.data() + r * form.k + group * form.group;
    for (std::int64_t i = 0; i < word_count; ++i) {
      const std::uint32_t word = form.bits == 4 ? word4(codes + 8 * i) : word8(codes + 4 * i);
      std::memcpy(words + (i * kRows + r) * 4, &word, 4);
    }
  }
}

void pack_affine_panel(const MatrixRows& rows, const PackedMatrix& form, std::int64_t strip, std::int64_t panel,
                       PanelRows& scratch, std::byte* out) {
  const std::int64_t first = strip * PackedMatrix::kStripRows + panel * kRows;
  const std::int64_t live = std::min(kRows, form.n - first);
  const auto width = static_cast<std::int64_t>(size_of(form.scale_type));
  for (std::int64_t r = 0; r < live; ++r)
    rows.affine(first + r, scratch.codes.data() + r * form.k, scratch.scales.data() + r * form.groups() * width,
                scratch.biases.data() + r * form.groups() * width);
  for (std::int64_t g = 0; g < form.groups(); ++g)
    store_affine_block(form, scratch, g, live, out + form.offset(strip, g, panel));
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
  if (module.kind == PackedKind::affine) {
    form.bits = module.bits == 4 ? 4 : 8;
    form.group = module.group;
  }
  return form;
}

void pack_strips(const MatrixRows& rows, const PackedMatrix& form, std::byte* out, std::int64_t begin,
                 std::int64_t end) {
  OUTRIDER_CHECK(static_cast<bool>(rows.affine) != static_cast<bool>(rows.dense));
  PanelRows affine;
  std::vector<std::byte> dense;
  if (form.kind == PackedKind::affine) {
    OUTRIDER_CHECK(rows.affine && form.k % form.group == 0);
    affine.codes.resize(static_cast<std::size_t>(kRows * form.k));
    affine.scales.resize(static_cast<std::size_t>(kRows * form.groups()) * size_of(form.scale_type));
    affine.biases.resize(affine.scales.size());
  } else {
    dense.resize(static_cast<std::size_t>(kRows * form.k) * size_of(form.scale_type));
  }
  for (std::int64_t strip = begin; strip < end; ++strip) {
    for (std::int64_t panel = 0; panel < form.panels_of(strip); ++panel) {
      if (form.kind == PackedKind::affine)
        pack_affine_panel(rows, form, strip, panel, affine, out);
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
    std::memcpy(scales, m.scales + row * groups * width, static_cast<std::size_t>(groups * width));
    std::memcpy(biases, m.biases + row * groups * width, static_cast<std::size_t>(groups * width));
  };
  return rows;
}

MatrixRows rows_of(const DenseMatrix& m) {
  MatrixRows rows;
  rows.info = {PackedKind::dense, m.type, 0, 0, m.n, m.k, false};
  rows.dense = [m, bytes = static_cast<std::size_t>(m.k) * size_of(m.type)](std::int64_t row, std::byte* values) {
    std::memcpy(values, m.values + static_cast<std::size_t>(row) * bytes, bytes);
  };
  return rows;
}

PackedWeight pack_affine(const AffineMatrix& matrix) { return pack(rows_of(matrix), Precision::packed, {}); }
PackedWeight pack_dense(const DenseMatrix& matrix) { return pack(rows_of(matrix), Precision::packed, {}); }

}  // namespace outrider
