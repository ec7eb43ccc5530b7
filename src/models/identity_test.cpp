// The first promise: the bytes of a sequence's logits and hidden rows depend on neither batch, chunks, threads,
// instruction set nor neighbours that vanish.
#include <gtest/gtest.h>

#include <random>

#include "models/model_fixture.h"

namespace outrider {
namespace {

// Parts of 3 to 8 bits and groups of 32 to 128 in one layer; e2m1 in groups of 16; per-head norms and biases; layers
// without RoPE; plain bf16 weights; recurrent layers with 1 and 4 value heads per key head, float and quantized.
const char* const kModels[] = {"models/mlx_mixed",    "models/mlx_nvfp4",      "models/qwen3_bias_head_wide",
                               "models/smollm3_list", "models/llama_bf16",     "qwen3_5/hv4_tied",
                               "qwen3_5/uneven",      "qwen3_5/mlx_b4_wrapped"};
constexpr std::int64_t kVocab = 97;

std::vector<std::int32_t> random_ids(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % kVocab);
  return ids;
}

void expect_same(const Sequence& a, const Sequence& b, std::int64_t tokens, const std::string& what) {
  ASSERT_EQ(a.ids, b.ids);
  const std::size_t count = static_cast<std::size_t>(tokens) * (a.logits.size() / a.ids.size());
  EXPECT_EQ(std::memcmp(a.logits.data(), b.logits.data(), count * sizeof(float)), 0) << what;
  const std::size_t hidden = static_cast<std::size_t>(tokens) * (a.hidden.size() / a.ids.size());
  EXPECT_EQ(std::memcmp(a.hidden.data(), b.hidden.data(), hidden * sizeof(float)), 0) << what;
}

TEST(Identity, ChunksOfAPromptDoNotMatter) {
  for (const char* name : kModels) {
    Runner runner(goldens() / name, Precision::packed);
    const std::vector<std::int32_t> ids = random_ids(700, 1);
    const Sequence whole = runner.run(ids, 512), ones = runner.run(ids, 1);
    for (const std::int64_t chunk : {7, 64, 333}) expect_same(runner.run(ids, chunk), whole, 700, name);
    expect_same(ones, whole, 700, name);
    // The cuts of a window of 4 taps, over a block of keys.
    const std::vector<std::int32_t> start(ids.begin(), ids.begin() + 80);
    const Sequence at_once = runner.run(start);
    for (const std::int64_t chunk : {2, 3, 5}) expect_same(runner.run(start, chunk), at_once, 80, name);
  }
}

TEST(Identity, ThreadsAndInstructionSetsDoNotMatter) {
  for (const char* name : kModels) {
    const std::vector<std::int32_t> ids = random_ids(150, 2);
    const Sequence portable = Runner(goldens() / name, Precision::packed, 1, kernel_table(Isa::portable)).run(ids, 130);
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::amx, Isa::neon}) {
      const KernelTable* table = kernel_table(isa);
      if (table == nullptr) {
        std::printf("[   NOTE   ] %s is absent here: not compared\n", std::string(name_of(isa)).c_str());
        continue;
      }
      for (const int threads : {1, 2, 7}) {
        Runner runner(goldens() / name, Precision::packed, threads, table);
        expect_same(runner.run(ids, 130), portable, 150, fmt::format("{} {} {} threads", name, name_of(isa), threads));
      }
    }
  }
}

TEST(Identity, F32PrecisionKeepsThePromiseToo) {
  const std::vector<std::int32_t> ids = random_ids(90, 3);
  Runner runner(goldens() / "models/mlx_mixed", Precision::f32, 2);
  const Sequence whole = runner.run(ids);
  expect_same(runner.run(ids, 7), whole, 90, "chunks of 7");
  Runner portable(goldens() / "models/mlx_mixed", Precision::f32, 1, kernel_table(Isa::portable));
  expect_same(portable.run(ids), whole, 90, "portable");
}

// Ragged rows that start at different steps in chunks of random size; some are cancelled on the way.
TEST(Identity, NeighboursDoNotMatterNorDoTheirCancellations) {
  std::mt19937 random(4);
  for (const char* name : kModels)
    for (const int rows : {1, 2, 3, 8, 17}) {
      Runner runner(goldens() / name, Precision::packed);
      std::vector<Sequence> sequences;
      std::vector<Sequence*> pointers;
      sequences.reserve(17);
      for (int r = 0; r < rows; ++r) {
        const auto length = static_cast<std::int64_t>(r % 4 == 0 ? 90 + random() % 120 : 1 + random() % 40);
        sequences.emplace_back(runner.declaration(), random_ids(length, 100 + static_cast<std::uint32_t>(r)));
        pointers.push_back(&sequences.back());
      }
      std::vector<bool> cancelled(sequences.size());
      const auto open = [&](std::size_t i) { return !cancelled[i] && sequences[i].left() > 0; };
      for (bool any = true; any;) {
        std::vector<std::int64_t> tokens(sequences.size());
        any = false;
        for (std::size_t i = 0; i < sequences.size(); ++i) {
          if (rows > 2 && i % 3 == 1 && random() % 12 == 0) cancelled[i] = true;
          const auto chunk = static_cast<std::int64_t>(random() % 3 == 0 ? 1 + random() % 29 : random() % 3);
          if (open(i)) tokens[i] = std::min(sequences[i].left(), chunk);
        }
        if (std::count(tokens.begin(), tokens.end(), 0) < static_cast<std::int64_t>(tokens.size()))
          runner.step(pointers, tokens);
        for (std::size_t i = 0; i < sequences.size(); ++i) any = any || open(i);
      }
      for (const Sequence& s : sequences)
        expect_same(s, runner.run(s.ids), s.done, fmt::format("{} of {} rows", name, rows));
    }
}

TEST(Identity, RunningLayersInRangesEqualsRunningThemAtOnce) {
  for (const char* name : {"models/mlx_mixed", "qwen3_5/hv4_tied"}) {
    Runner runner(goldens() / name, Precision::packed);
    const Declaration& d = runner.declaration();
    const std::vector<std::int32_t> ids = random_ids(20, 5);
    const Sequence whole = runner.run(ids);
    Sequence cut(d, ids);
    const std::vector<BatchRow> rows = {cut.batch_row(0, 20)};
    std::vector<std::uint32_t> faults(20);
    Arena::Scope scope(runner.arena);
    const Step step{*runner.device, runner.arena, faults.data()};
    // A forward of no layers is the embedding; its rows are those of layer 0's input.
    const RaggedBatch batch = {ids, rows};
    Tensor h = runner.arena.tensor(20, d.width);
    {
      const std::unique_ptr<ModelSource> source = open_model_source(goldens() / name);
      const PackedWeight embedding = source->load_matrix("model.embed_tokens", d.vocab, d.width, Precision::packed);
      runner.device->embed(embedding.view, ids, h);
    }
    EXPECT_EQ(runner.model->run_layer_range(step, batch, h, 1, 1).data, h.data);
    h = runner.model->run_layer_range(step, batch, h, 0, 1);
    h = runner.model->run_layer_range(step, batch, h, 1, d.layers);
    EXPECT_EQ(std::memcmp(h.data, whole.hidden.data(), whole.hidden.size() * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace outrider
