// The MTP module against the formulas of models.md 4.1 in double, and its bytes under every cut of the work.
#include "speculate/mtp_module.h"

#include <gtest/gtest.h>

#include <cmath>

#include "speculate/draft_fixture.h"
#include "speculate/mtp_rows.h"

namespace outrider {
namespace {

using F = DraftFixture;
using Doubles = std::vector<double>;

constexpr DraftLimits kLimits = {8, 4, 64, 256};

// --- The formulas, in double ---

Doubles unpacked(const PackedMatrix& w, std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(w.k));
  kernel_table(Isa::portable)->unpack_row(w, row, values.data());
  return {values.begin(), values.end()};
}

Doubles product(const Linear& linear, const Doubles& x) {
  Doubles y;
  for (std::int64_t o = 0; o < linear.n(); ++o) {
    const Doubles w = unpacked(linear.weight.view, o);
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += w[i] * x[i];
    y.push_back(sum);
  }
  return y;
}

Doubles rms(const Doubles& x, const Norm& norm) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  const double r = 1 / std::sqrt(sum / static_cast<double>(x.size()) + static_cast<double>(norm.eps));
  Doubles y;
  for (std::size_t i = 0; i < x.size(); ++i) y.push_back(x[i] * r * static_cast<double>(norm.data()[i]));
  return y;
}

Doubles part(const Doubles& x, std::int64_t begin, std::int64_t count) {
  return {x.begin() + begin, x.begin() + begin + count};
}

void rotate(Doubles& head, std::int64_t position) {
  for (std::int64_t i = 0; i < F::kRotated / 2; ++i) {
    const auto a = static_cast<std::size_t>(i), b = static_cast<std::size_t>(i + F::kRotated / 2);
    const double angle =
        static_cast<double>(position) * std::pow(1e4, -2.0 * static_cast<double>(i) / static_cast<double>(F::kRotated));
    const double x = head[a], y = head[b];
    head[a] = x * std::cos(angle) - y * std::sin(angle);
    head[b] = y * std::cos(angle) + x * std::sin(angle);
  }
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Output of every pair of one row, in order.
std::vector<Doubles> naive(const NativeDraft& draft, const std::vector<std::int32_t>& tokens,
                           const std::vector<Doubles>& hiddens) {
  const MtpWeights& w = draft.weights;
  std::vector<Doubles> outputs;
  std::vector<std::vector<Doubles>> keys, values;  // [position][kv head]
  for (std::size_t p = 0; p < tokens.size(); ++p) {
    Doubles both = rms(unpacked(*draft.embed_tokens, tokens[p]), w.pre_fc_norm_embedding);
    const Doubles hidden = rms(hiddens[p], w.pre_fc_norm_hidden);
    both.insert(both.end(), hidden.begin(), hidden.end());
    Doubles h = product(w.fc, both);
    const Doubles n = rms(h, w.input_layernorm);
    const Doubles q = product(w.self_attn.q_proj, n), k = product(w.self_attn.k_proj, n);
    const Doubles v = product(w.self_attn.v_proj, n);
    keys.emplace_back();
    values.emplace_back();
    for (std::int64_t head = 0; head < F::kKvHeads; ++head) {
      keys.back().push_back(rms(part(k, head * F::kHeadWidth, F::kHeadWidth), w.self_attn.k_norm));
      rotate(keys.back().back(), static_cast<std::int64_t>(p));
      values.back().push_back(part(v, head * F::kHeadWidth, F::kHeadWidth));
    }
    Doubles attended;
    for (std::int64_t head = 0; head < F::kHeads; ++head) {
      Doubles query = rms(part(q, 2 * head * F::kHeadWidth, F::kHeadWidth), w.self_attn.q_norm);
      rotate(query, static_cast<std::int64_t>(p));
      const Doubles gate = part(q, (2 * head + 1) * F::kHeadWidth, F::kHeadWidth);
      const auto kv = static_cast<std::size_t>(head / (F::kHeads / F::kKvHeads));
      Doubles sum(F::kHeadWidth);
      double total = 0;
      for (std::size_t j = 0; j <= p; ++j) {
        double score = 0;
        for (std::size_t d = 0; d < query.size(); ++d) score += query[d] * keys[j][kv][d];
        const double weight = std::exp(score / std::sqrt(static_cast<double>(F::kHeadWidth)));
        total += weight;
        for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += weight * values[j][kv][d];
      }
      for (std::size_t d = 0; d < sum.size(); ++d) attended.push_back(sum[d] / total * sigmoid(gate[d]));
    }
    const Doubles o = product(w.self_attn.o_proj, attended);
    for (std::size_t i = 0; i < h.size(); ++i) h[i] += o[i];
    const Doubles m = rms(h, w.post_attention_layernorm);
    Doubles inner = product(w.mlp.gate_proj, m);
    const Doubles up = product(w.mlp.up_proj, m);
    for (std::size_t i = 0; i < inner.size(); ++i) inner[i] *= sigmoid(inner[i]) * up[i];
    const Doubles down = product(w.mlp.down_proj, inner);
    for (std::size_t i = 0; i < h.size(); ++i) h[i] += down[i];
    outputs.push_back(rms(h, w.norm));
  }
  return outputs;
}

// --- Runs ---

struct HeadRun {
  HeadRun(const DraftFixture& fixture, FloatType kv_type, const KernelTable& table = kernels(), int threads = 2)
      : module(fixture.draft, nullptr, kv_type),
        device(make_cpu_device(threads, table)),
        pool(module.kv_layout(), 64),
        arena(module.scratch_bytes(*device, kLimits)) {}

  // Pairs [done, done + counts[r]) of row r, r = 0, 1, ..., in one pass.
  void pass(const std::vector<std::int64_t>& counts) {
    std::vector<std::int32_t> tokens;
    std::vector<BatchRow> batch;
    std::vector<float> hiddens;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      while (rows.size() <= r) rows.emplace_back(pool).advance_to_first();
      if (counts[r] == 0) continue;
      rows[r].kv.reserve(counts[r]);
      const auto begin = std::ssize(tokens);
      for (std::int64_t i = 0; i < counts[r]; ++i) {
        const std::int64_t p = rows[r].kv.length() - 1 + i;
        tokens.push_back(token(static_cast<std::int64_t>(r), p));
        const std::vector<float> hidden = hidden_of(static_cast<std::int64_t>(r), p);
        hiddens.insert(hiddens.end(), hidden.begin(), hidden.end());
      }
      batch.push_back({.begin = begin,
                       .end = std::ssize(tokens),
                       .position = rows[r].kv.length(),
                       .planned_tokens = 0,
                       .blocks = rows[r].kv.blocks(),
                       .first_key = 1});
    }
    std::vector<std::uint32_t> faults(tokens.size());
    const Arena::Scope scope(arena);
    const Step step{*device, arena, faults.data()};
    const Tensor h{hiddens.data(), std::ssize(tokens), F::kWidth, F::kWidth};
    if (append_only) {
      module.append_only(step, {tokens, batch}, h);
    } else {
      const Tensor out = module.forward(step, {tokens, batch}, h);
      std::int64_t t = 0;
      for (std::size_t r = 0; r < counts.size(); ++r)
        for (std::int64_t i = 0; i < counts[r]; ++i, ++t)
          rows[r].outputs.insert(rows[r].outputs.end(), out.row(t), out.row(t) + out.width);
    }
    for (std::size_t r = 0; r < counts.size(); ++r) rows[r].kv.advance(counts[r]);
    EXPECT_EQ(std::count(faults.begin(), faults.end(), 0U), std::ssize(faults));
  }

  static std::int32_t token(std::int64_t row, std::int64_t p) {
    return static_cast<std::int32_t>((row * 37 + p * 11) % F::kVocab);
  }
  static std::vector<float> hidden_of(std::int64_t row, std::int64_t p) {
    std::mt19937 random(static_cast<std::uint32_t>(row * 1000 + p));
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> values(F::kWidth);
    for (float& value : values) value = normal(random);
    return values;
  }
  struct Row {
    KvRow kv;
    std::vector<float> outputs;
    explicit Row(KvPool& pool) : kv(pool) {}
    void advance_to_first() {
      kv.reserve(1);
      kv.advance(1);
    }
    std::vector<std::byte> bytes(const KvLayout& layout) const {
      const std::size_t plane = static_cast<std::size_t>(kv.length()) * layout.token_bytes() / 2;
      std::vector<std::byte> k(plane), v(plane);
      kv.read(0, kv.length(), k, v);
      k.insert(k.end(), v.begin(), v.end());
      return k;
    }
  };

  MtpModule module;
  std::unique_ptr<Device> device;
  KvPool pool;
  Arena arena;
  std::vector<Row> rows;
  bool append_only = false;
};

TEST(MtpModule, MatchesTheFormulasInDouble) {
  for (const FixtureWeights kind : {FixtureWeights::dense, FixtureWeights::quantized}) {
    const DraftFixture fixture(kind);
    HeadRun run(fixture, FloatType::f32);
    run.pass({9, 4});
    for (std::int64_t r = 0; r < 2; ++r) {
      std::vector<std::int32_t> tokens;
      std::vector<Doubles> hiddens;
      for (std::int64_t p = 0; p < (r == 0 ? 9 : 4); ++p) {
        tokens.push_back(HeadRun::token(r, p));
        const std::vector<float> hidden = HeadRun::hidden_of(r, p);
        hiddens.emplace_back(hidden.begin(), hidden.end());
      }
      const std::vector<Doubles> expected = naive(fixture.draft, tokens, hiddens);
      double worst = 0;
      for (std::size_t p = 0; p < expected.size(); ++p)
        for (std::size_t i = 0; i < expected[p].size(); ++i)
          worst = std::max(
              worst, std::abs(static_cast<double>(run.rows[static_cast<std::size_t>(r)].outputs[p * F::kWidth + i]) -
                              expected[p][i]));
      // Outputs are about 1 after the last norm; quantized products code their inputs to 16 bits.
      EXPECT_LT(worst, kind == FixtureWeights::dense ? 2e-5 : 2e-3);
    }
  }
}

TEST(MtpModule, BytesDependOnNeitherCutsNorThreadsNorIsaNorNeighbours) {
  const DraftFixture fixture(FixtureWeights::quantized);
  HeadRun expected(fixture, FloatType::f16, *kernel_table(Isa::portable), 1);
  expected.pass({13, 0, 0});
  expected.pass({0, 40, 0});
  expected.pass({0, 0, 7});
  expected.pass({0, 30, 0});  // a second block
  const std::vector<std::vector<std::vector<std::int64_t>>> cuts = {
      {{13, 40, 7}, {0, 30, 0}}, {{1, 2, 3}, {2, 38, 0}, {10, 30, 4}}, {{5, 5, 5}, {8, 50, 1}, {0, 15, 1}}};
  for (const KernelTable* table : present_tables())
    for (const int threads : {1, 2, 7})
      for (const auto& passes : cuts) {
        HeadRun run(fixture, FloatType::f16, *table, threads);
        for (const std::vector<std::int64_t>& counts : passes) run.pass(counts);
        for (std::size_t r = 0; r < 3; ++r) {
          EXPECT_TRUE(same_bytes(run.rows[r].outputs, expected.rows[r].outputs)) << name_of(table->isa) << " row " << r;
          EXPECT_EQ(run.rows[r].bytes(run.module.kv_layout()), expected.rows[r].bytes(run.module.kv_layout()));
        }
      }
}

TEST(MtpModule, AppendOnlyStoresTheSameBytes) {
  for (const FixtureWeights kind : {FixtureWeights::dense, FixtureWeights::quantized}) {
    const DraftFixture fixture(kind);
    HeadRun forward(fixture, FloatType::f16), append(fixture, FloatType::f16);
    append.append_only = true;
    forward.pass({40, 9});
    forward.pass({24, 1});
    append.pass({1, 10});
    append.pass({63, 0});
    for (std::size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(append.rows[r].kv.length(), forward.rows[r].kv.length());
      EXPECT_EQ(append.rows[r].bytes(append.module.kv_layout()), forward.rows[r].bytes(append.module.kv_layout()));
    }
  }
}

TEST(MtpModule, LogitsAreThoseOfTheTargetsHead) {
  const DraftFixture fixture(FixtureWeights::quantized);
  HeadRun run(fixture, FloatType::f16);
  Values outputs = Values::random(3, F::kWidth, 5), logits(3, F::kVocab), expected(3, F::kVocab);
  std::uint32_t faults[3] = {};
  const Step step{*run.device, run.arena, faults};
  run.module.head(step, outputs.tensor(), logits.tensor());
  const LinearPart part = {.weight = fixture.draft.head, .out = expected.tensor()};
  run.device->linear(outputs.tensor(), {&part, 1}, run.arena, faults);
  EXPECT_TRUE(same_bytes(logits.data, expected.data));
}

TEST(DraftVocabulary, HasTheFullHeadsLogitsOfItsTokens) {
  const std::unique_ptr<Device> device = make_cpu_device(2);
  Arena arena(1 << 20);
  const auto check = [&](const PackedFixture& head) {
    std::vector<std::int32_t> ids;
    for (std::int32_t id = 0; id < head.view.n; ++id)
      if (id * 7 % 11 < 4 || id == head.view.n - 1) ids.push_back(id);
    const DraftVocabulary vocabulary = make_draft_vocabulary(head.view, ids);
    EXPECT_EQ(vocabulary.ids, ids);
    EXPECT_EQ(vocabulary.head.view.bytes(), draft_vocabulary_bytes(head.view, std::ssize(ids)));
    Values x = Values::random(3, head.view.k, 8), full(3, head.view.n), few(3, std::ssize(ids));
    std::uint32_t faults[3] = {};
    const LinearPart full_part = {.weight = &head.view, .out = full.tensor()};
    const LinearPart few_part = {.weight = &vocabulary.head.view, .out = few.tensor()};
    device->linear(x.tensor(), {&full_part, 1}, arena, faults);
    device->linear(x.tensor(), {&few_part, 1}, arena, faults);
    for (std::int64_t r = 0; r < 3; ++r)
      for (std::size_t c = 0; c < ids.size(); ++c)
        EXPECT_EQ(few.row(r)[c], full.row(r)[ids[c]]) << head.view.bits << " bits, token " << ids[c];
  };
  for (const int bits : {2, 3, 4, 5, 6, 8}) check(PackedFixture::affine(331, 64, bits, 32, 3));
  check(PackedFixture::affine(96, 128, 4, 64, 4));
  check(PackedFixture::e2m1(200, 64, 32, 5));
  check(PackedFixture::dense(250, 40, 6));
}

// The real module under the rows: whatever rounds a text went through, its draft KV has the bytes of one prefill.
TEST(MtpModule, RowsOfAnySchedulesHaveTheBytesOfAPrefill) {
  const DraftFixture fixture(FixtureWeights::quantized);
  const DraftVocabulary vocabulary = make_draft_vocabulary(*fixture.draft.head, {1, 5, 9, 40, 77, 130});
  MtpModule module(fixture.draft, &vocabulary, FloatType::f16);
  const std::unique_ptr<Device> device = make_cpu_device(2);
  KvPool pool(module.kv_layout(), 64);
  Arena arena(MtpRows::scratch_bytes(module, *device, kLimits));
  const Step step{*device, arena};
  MtpRows rows(module, pool, kLimits, Refresh::from_target);
  rows.append(std::vector<MtpJoin>(2));

  class Best final : public DraftPort {
   public:
    void choose(const Step& at, Tensor logits, std::span<const std::int32_t> ids, std::span<const DraftPick> picks,
                std::span<DraftChoice> out) override {
      std::vector<std::int32_t> columns(picks.size());
      std::vector<std::uint32_t> faults(picks.size());
      at.device.argmax(logits, columns.data(), faults.data());
      for (std::size_t i = 0; i < picks.size(); ++i)
        out[i] = {Picked::proposal, ids[static_cast<std::size_t>(columns[i])]};
    }
  } port;

  std::vector<std::int32_t> text;
  Values context(200, F::kWidth);
  const auto grow = [&](std::int64_t r, std::int32_t token) {
    const std::vector<float> hidden = HeadRun::hidden_of(r, std::ssize(text));
    std::copy(hidden.begin(), hidden.end(), context.row(std::ssize(text)));
    text.push_back(token);
  };
  std::mt19937 random(4);
  for (int i = 0; i < 10; ++i) grow(0, static_cast<std::int32_t>(random() % F::kVocab));
  RowResult result;
  const MtpFeed prompt{0, text, context.tensor().slice(0, 10)};
  rows.prefill(step, {&prompt, 1}, {&result, 1});
  while (text.size() < 90) {
    const auto pending = static_cast<std::int32_t>(random() % F::kVocab);
    const MtpAsk ask{0, pending, static_cast<std::int64_t>(random() % 5), std::ssize(text)};
    rows.draft(step, {&ask, 1}, &port, {&result, 1});
    const std::vector<std::int32_t> proposals(rows.proposals(0).begin(), rows.proposals(0).end());
    for (const std::int32_t id : proposals)
      EXPECT_TRUE(std::binary_search(vocabulary.ids.begin(), vocabulary.ids.end(), id));
    const auto accepted = static_cast<std::int64_t>(random() % (proposals.size() + 1));
    const std::int64_t begin = std::ssize(text);
    grow(0, pending);
    for (std::int64_t i = 0; i < accepted; ++i) grow(0, proposals[static_cast<std::size_t>(i)]);
    const MtpVerdict verdict{0, accepted, context.tensor().slice(begin, accepted + 1)};
    rows.commit(step, {&verdict, 1}, {&result, 1});
    EXPECT_EQ(result, RowResult::done);
  }
  const MtpFeed whole{1, text, context.tensor().slice(0, std::ssize(text))};
  rows.prefill(step, {&whole, 1}, {&result, 1});
  const MtpCheckpoint grown = rows.checkpoint(step, 0), fresh = rows.checkpoint(step, 1);
  EXPECT_EQ(grown.draft_offset, std::ssize(text) - 1);
  EXPECT_EQ(grown.k, fresh.k);
  EXPECT_EQ(grown.v, fresh.v);
  EXPECT_EQ(grown.hidden, fresh.hidden);
  EXPECT_LE(arena.peak(), arena.size());
}

}  // namespace
}  // namespace outrider
