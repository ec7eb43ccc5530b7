// Test support: a draft module of width 1 that stores the pair (token, hidden) as (key, value), embed(t) = t, so that a
// row's KV can be read off; a port that follows a script; and the surroundings of a call.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "speculate/mtp_rows.h"

namespace outrider {

inline std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ x >> 31) * 0x9E3779B97F4A7C15ull;
  return x ^ x >> 29;
}

class ScriptedDraft final : public DraftModule {
 public:
  enum class Outputs { a_thousand_more, of_the_whole_row };
  explicit ScriptedDraft(Outputs outputs = Outputs::a_thousand_more) : outputs_(outputs) {}

  std::int64_t width() const override { return 1; }
  KvLayout kv_layout() const override { return {1, 1, 1, FloatType::f32}; }
  const std::string& identity() const override { return name; }
  std::int64_t head_columns() const override { return 1; }
  std::span<const std::int32_t> head_ids() const override { return {}; }

  Tensor forward(const Step& step, const RaggedBatch& batch, Tensor hiddens) override {
    ++forwards;
    if (before_pass) before_pass();
    const Tensor out = step.arena.tensor(batch.size(), 1);
    store(step, batch, hiddens, &out);
    return out;
  }
  void append_only(const Step& step, const RaggedBatch& batch, Tensor hiddens) override {
    ++appends;
    longest_pass = std::max(longest_pass, batch.size());
    if (before_pass) before_pass();
    store(step, batch, hiddens, nullptr);
  }
  void head(const Step& step, Tensor outputs, Tensor logits) override {
    ++heads;
    for (std::int64_t r = 0; r < outputs.rows; ++r) {
      logits.row(r)[0] = *outputs.row(r);
      if (*outputs.row(r) == faulty_output) step.faults[r] |= kFaultNonFinite;
    }
  }
  std::size_t scratch_bytes(const Device&, const DraftLimits& limits) const override {
    return arena_bytes(static_cast<std::size_t>(std::max(limits.chunk_tokens, limits.rows)) * sizeof(float));
  }

  // The output of the newest of these pairs.
  float output(std::span<const float> keys, std::span<const float> values) const {
    if (outputs_ == Outputs::a_thousand_more) return 1000 + keys.back();
    std::uint64_t hash = 0;
    for (std::size_t i = 0; i < keys.size(); ++i)
      hash = mixed(hash + static_cast<std::uint64_t>(keys[i]) * 31 + static_cast<std::uint64_t>(values[i]) * 7 + i);
    return static_cast<float>(hash >> 48);
  }

  std::string name = "scripted";
  std::int64_t forwards = 0, appends = 0, heads = 0, longest_pass = 0;
  std::function<void()> before_pass;
  std::int32_t faulty_token = -1;
  float faulty_output = -1;

 private:
  static float* slot(const KvLayout& layout, const BatchRow& row, std::int64_t position, std::size_t plane) {
    std::byte* block = row.blocks[static_cast<std::size_t>(position / kBlockKeys)];
    return reinterpret_cast<float*>(block + layout.k_offset(0, 0) + plane * layout.plane_bytes()) +
           position % kBlockKeys;
  }
  void store(const Step& step, const RaggedBatch& batch, Tensor hiddens, const Tensor* out) const {
    const KvLayout layout = kv_layout();
    for (const BatchRow& row : batch.rows) {
      EXPECT_EQ(row.first_key, 1);
      for (std::int64_t i = row.begin; i < row.end; ++i) {
        const std::int64_t position = row.position + i - row.begin;
        const std::int32_t token = batch.tokens[static_cast<std::size_t>(i)];
        *slot(layout, row, position, 0) = static_cast<float>(token);
        *slot(layout, row, position, 1) = *hiddens.row(i);
        EXPECT_EQ(*slot(layout, row, 0, 0), 0) << "position 0 stays empty";
        if (token == faulty_token) step.faults[i] |= kFaultNonFinite;
        if (out == nullptr) continue;
        std::vector<float> keys, values;
        for (std::int64_t p = 1; p <= position; ++p) {
          keys.push_back(*slot(layout, row, p, 0));
          values.push_back(*slot(layout, row, p, 1));
        }
        *out->row(i) = output(keys, values);
      }
    }
  }
  Outputs outputs_;
};

class ScriptedPort final : public DraftPort {
 public:
  using Script = std::function<DraftChoice(const DraftPick&, float output)>;
  explicit ScriptedPort(Script script) : script_(std::move(script)) {}
  void choose(const Step&, Tensor logits, std::span<const std::int32_t>, std::span<const DraftPick> rows,
              std::span<DraftChoice> out) override {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      picks.push_back(rows[i]);
      out[i] = script_(rows[i], *logits.row(static_cast<std::int64_t>(i)));
    }
  }
  std::vector<DraftPick> picks;

 private:
  Script script_;
};

inline ScriptedPort port_that_proposes(std::function<std::int32_t(const DraftPick&, float)> id) {
  return ScriptedPort([id = std::move(id)](const DraftPick& pick, float output) {
    return DraftChoice{Picked::proposal, id(pick, output)};
  });
}

// One row of a call with values of its own.
struct TestFeed {
  std::int64_t row;
  std::vector<std::int32_t> tokens;
  std::vector<float> context;
};
struct TestVerdict {
  std::int64_t row, accepted;
  std::vector<float> context;
};

// A group of rows over the scripted module, called with plain vectors.
struct DraftScene {
  explicit DraftScene(Refresh refresh = Refresh::from_target,
                      ScriptedDraft::Outputs outputs = ScriptedDraft::Outputs::a_thousand_more,
                      DraftLimits limits = {8, 4, 64, 4096})
      : module(outputs),
        pool(module.kv_layout(), 256),
        device(make_cpu_device(1)),
        arena(MtpRows::scratch_bytes(module, *device, limits)),
        group(std::make_unique<MtpRows>(module, pool, limits, refresh)) {}

  Step step() { return {*device, arena}; }

  void append_cold(std::int64_t count) { group->append(std::vector<MtpJoin>(static_cast<std::size_t>(count))); }
  std::vector<RowResult> prefill(std::vector<TestFeed> rows) {
    std::vector<MtpFeed> feeds;
    for (TestFeed& row : rows) feeds.push_back({row.row, row.tokens, tensor_of(row.context)});
    std::vector<RowResult> results(rows.size());
    group->prefill(step(), feeds, results);
    return results;
  }
  // Prefills with context = 10*token.
  std::vector<RowResult> prefill_tens(std::vector<std::vector<std::int32_t>> tokens, std::int64_t first_row = 0) {
    std::vector<TestFeed> rows;
    for (std::vector<std::int32_t>& row : tokens) {
      rows.push_back({first_row + std::ssize(rows), std::move(row), {}});
      for (const std::int32_t token : rows.back().tokens)
        rows.back().context.push_back(10.0F * static_cast<float>(token));
    }
    return prefill(std::move(rows));
  }
  std::vector<RowResult> draft(const std::vector<MtpAsk>& asks, DraftPort* port) {
    std::vector<RowResult> results(asks.size());
    group->draft(step(), asks, port, results);
    return results;
  }
  std::vector<RowResult> commit(std::vector<TestVerdict> rows) {
    std::vector<MtpVerdict> verdicts;
    for (TestVerdict& row : rows) verdicts.push_back({row.row, row.accepted, tensor_of(row.context)});
    std::vector<RowResult> results(rows.size());
    group->commit(step(), verdicts, results);
    return results;
  }
  std::vector<float> keys(std::int64_t r) const { return plane(group->kv(r), 0); }
  std::vector<float> values(std::int64_t r) const { return plane(group->kv(r), 1); }
  float hidden(std::int64_t r) const { return group->hidden(r)[0]; }

  static Tensor tensor_of(std::vector<float>& values) {
    return {values.data(), static_cast<std::int64_t>(values.size()), 1, 1};
  }
  static std::vector<float> plane(const KvRow& row, std::size_t which) {
    const std::int64_t length = row.length();
    if (length == 0) return {};
    std::vector<std::byte> planes[2];
    for (auto& bytes : planes) bytes.resize(static_cast<std::size_t>(length - 1) * 4);
    row.read(1, length, planes[0], planes[1]);
    std::vector<float> out(static_cast<std::size_t>(length - 1));
    std::memcpy(out.data(), planes[which].data(), planes[which].size());
    return out;
  }

  ScriptedDraft module;
  KvPool pool;
  std::unique_ptr<Device> device;
  Arena arena;
  std::unique_ptr<MtpRows> group;
};

}  // namespace outrider
