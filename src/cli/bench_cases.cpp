#include "cli/bench_cases.h"

#include <algorithm>

namespace outrider {
namespace {

constexpr std::int64_t kVerifyWindows[] = {2, 3, 4};
// What the few rows of a window can be expected to reach: their weights are widened for each of them anew. AVX-512 is
// to stay within 1.15 times the sum of max(bytes / bandwidth, multiply-adds / (this share of the peak)).
constexpr double kWindowPeakShare = 0.6;

void append(std::vector<ShapeCase>& cases, const std::string& suite, const BenchShapes& shapes) {
  if (suite == "decode")
    for (const std::int64_t context : shapes.contexts)
      cases.push_back(
          {fmt::format("decode context {}", context), "tok/s", Quantity::rate, 1, {.context = context}, {}});
  if (suite == "prompt")
    for (const std::int64_t tokens : shapes.prompts)
      cases.push_back({fmt::format("prompt {}", tokens),
                       "tok/s",
                       Quantity::rate,
                       static_cast<double>(tokens),
                       {.tokens = tokens},
                       {}});
  if (suite == "batch")
    for (const std::int64_t rows : {std::int64_t{1}, shapes.batch_rows})
      cases.push_back(
          {fmt::format("batch {}", rows), "tok/s", Quantity::rate, static_cast<double>(rows), {.rows = rows}, {}});
  if (suite == "verify") {
    const std::size_t one = cases.size();
    cases.push_back({"verify 1", "ms", Quantity::time, 1e3, {}, {}});
    for (const std::int64_t tokens : kVerifyWindows)
      cases.push_back({fmt::format("verify {}", tokens),
                       "x",
                       Quantity::slowdown,
                       1,
                       {.tokens = tokens, .head = StepShape::Head::every},
                       one});
    for (const std::int64_t tokens : kVerifyWindows)
      cases.push_back({fmt::format("verify {}, limit at {} of the 16 bit peak", tokens, kWindowPeakShare),
                       "ms",
                       Quantity::time,
                       1e3,
                       {.tokens = tokens, .head = StepShape::Head::every},
                       {},
                       kWindowPeakShare});
  }
}

const BenchRow* find(std::span<const BenchRow> rows, std::string_view name, std::string_view peer) {
  const auto row = std::find_if(rows.begin(), rows.end(),
                                [&](const BenchRow& each) { return each.name == name && each.peer == peer; });
  return row == rows.end() ? nullptr : &*row;
}

}  // namespace

std::vector<ShapeCase> shape_cases(const std::string& suite, const BenchShapes& shapes) {
  std::vector<ShapeCase> cases;
  if (suite != "peers") append(cases, suite, shapes);
  if (suite == "peers")
    for (const char* each : {"decode", "verify", "batch", "prompt"}) append(cases, each, shapes);
  return cases;
}

std::int64_t needed_context(std::span<const ShapeCase> cases) {
  std::int64_t needed = 0;
  for (const ShapeCase& c : cases) needed = std::max(needed, c.shape.context + c.shape.tokens);
  return needed;
}

std::vector<BenchCase> step_cases(const std::string& suite, std::span<const ShapeCase> cases, StepBench& bench,
                                  std::span<const std::unique_ptr<BenchPeer>> peers) {
  std::vector<BenchCase> out;
  for (const ShapeCase& c : cases) {
    BenchCase made{suite, c.name, c.unit, c.quantity, c.amount, {}, {}, c.base, {}};
    made.run = [&bench, shape = c.shape] { return bench.seconds(shape); };
    made.least_seconds = [&bench, shape = c.shape, share = c.peak_share](MachineLimits limits) {
      limits.i16_gmac_per_s *= share;
      return bench.least_seconds(shape, limits);
    };
    for (const auto& peer : peers) {
      if (c.peak_share != 1 || !peer->runs(c.shape)) continue;
      made.rivals.push_back({peer->name(), [&peer = *peer, shape = c.shape] { return peer.seconds(shape); }});
    }
    out.push_back(std::move(made));
  }
  return out;
}

std::vector<BenchCase> product_cases(const WeightFormat& format, KernelBench& bench) {
  const bool main_format = format.form.kind == PackedKind::affine && format.form.bits == 4 && format.form.group == 64;
  const std::vector<std::int64_t> rows =
      main_format ? std::vector<std::int64_t>{1, 2, 3, 4, 6, 8, 16, 32, 64, 512} : std::vector<std::int64_t>{1, 4, 64};
  std::vector<BenchCase> out;
  for (const std::int64_t m : rows) {
    const double matrices = static_cast<double>(bench.matrices(m));
    const double bytes = matrices * static_cast<double>(bench.matrix_bytes());
    const double macs = matrices * static_cast<double>(m * KernelBench::kOutputs * KernelBench::kInputs);
    BenchCase c;
    c.suite = "kernels";
    c.name = fmt::format("product {}, rows {}", format.name, m);
    // Few rows are bound by reading, many by multiplying; in between the limit is the larger time.
    c.unit = m == 1 ? "GB/s" : "Gmac/s";
    c.amount = (m == 1 ? bytes : macs) / 1e9;
    c.run = [&bench, m] { return bench.product_seconds(m); };
    c.least_seconds = [bytes, macs, coded = format.form.coded()](const MachineLimits& limits) {
      return std::max(bytes / limits.read_gb_per_s, macs / (coded ? limits.i16_gmac_per_s : limits.f32_gmac_per_s)) /
             1e9;
    };
    out.push_back(std::move(c));
  }
  return out;
}

std::vector<BenchCase> attention_cases(KernelBench& bench) {
  struct Shape {
    std::int64_t tokens, context;
  };
  std::vector<BenchCase> out;
  for (const Shape shape : {Shape{1, 2048}, Shape{1, 8192}, Shape{4, 2048}, Shape{512, 0}, Shape{512, 2048}}) {
    const double bytes = static_cast<double>(KernelBench::kv_bytes_of(shape.tokens, shape.context));
    const double macs = static_cast<double>(KernelBench::attention_macs_of(shape.tokens, shape.context));
    BenchCase c;
    c.suite = "kernels";
    c.name = fmt::format("attention tokens {}, context {}", shape.tokens, shape.context);
    c.unit = "Gmac/s";
    c.amount = macs / 1e9;
    c.run = [&bench, shape] { return bench.attention_seconds(shape.tokens, shape.context); };
    c.least_seconds = [bytes, macs](const MachineLimits& limits) {
      return std::max(bytes / limits.read_gb_per_s, macs / limits.f32_gmac_per_s) / 1e9;
    };
    out.push_back(std::move(c));
  }
  return out;
}

std::vector<BenchRow> prediction_rows(std::span<const BenchRow> measured) {
  std::vector<BenchRow> out;
  for (const auto& [name, share] : {std::pair{"decode context 0", kDecodeShare}, {"prompt 512", kPromptShare}}) {
    const BenchRow* row = find(measured, name, "");
    if (row == nullptr || !row->of_limit) continue;
    BenchRow over = {row->suite, fmt::format("{}, over the prediction of fit", name), "x", 0, {}, {}, "", {}, {}};
    over.value = *row->of_limit / share;
    out.push_back(std::move(over));
  }
  return out;
}

std::vector<BenchRow> batch_gain_rows(std::span<const BenchRow> measured) {
  std::vector<BenchRow> out;
  for (const BenchRow& row : measured) {
    const BenchRow* one = find(measured, "batch 1", row.peer);
    if (!row.name.starts_with("batch ") || one == nullptr || one == &row) continue;
    BenchRow gain = {row.suite, row.name + ", over one row", "x", row.value / one->value, {}, {}, row.peer, {}, {}};
    if (row.limit && one->limit) {
      gain.limit = *row.limit / *one->limit;
      gain.of_limit = gain.value / *gain.limit;
    }
    if (row.peer_value && one->peer_value) {
      gain.peer_value = *row.peer_value / *one->peer_value;
      gain.ratio = gain.value / *gain.peer_value;
    }
    out.push_back(std::move(gain));
  }
  return out;
}

}  // namespace outrider
