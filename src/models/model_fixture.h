// Test support: runs a model over token ids with KV blocks in plain buffers, in any batch and any chunks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "device/cpu_device.h"
#include "models/model.h"
#include "weights/safetensors.h"

namespace outrider {

// One request: its ids, how many it has run, its own blocks and the hidden rows and logits of every token.
class Sequence {
 public:
  Sequence(const Declaration& d, std::vector<std::int32_t> ids)
      : ids(std::move(ids)),
        hidden(this->ids.size() * static_cast<std::size_t>(d.width)),
        logits(this->ids.size() * static_cast<std::size_t>(d.vocab)) {
    for (std::size_t b = 0; b * kBlockKeys < this->ids.size(); ++b) {
      storage_.emplace_back(d.kv.block_bytes(), MemoryPart::kv);
      std::memset(storage_.back().data(), 0xff, d.kv.block_bytes());  // stale values that would poison any sum
      blocks.push_back(storage_.back().data());
    }
    if (d.recurrent.layers == 0) return;
    for (AlignedBuffer& slot : slots_) {
      slot = AlignedBuffer(d.recurrent.slot_bytes(), MemoryPart::recurrent);
      std::memset(slot.data(), 0xff, slot.size());
    }
  }
  // This sequence in a step of `tokens` from flat token `begin` on. The state goes to the slot the step does not read.
  BatchRow batch_row(std::int64_t begin, std::int64_t tokens) {
    BatchRow row{.begin = begin,
                 .end = begin + tokens,
                 .position = done,
                 .planned_tokens = static_cast<std::int64_t>(ids.size()),
                 .blocks = blocks};
    if (slots_[0].size() == 0) return row;
    store_ = {tokens, slots_[1 - current_].data()};
    row.recurrent = {done > 0 ? slots_[current_].data() : nullptr, {&store_, 1}};
    return row;
  }
  void advance(std::int64_t tokens) {
    done += tokens;
    current_ = 1 - current_;
  }
  std::int64_t left() const { return static_cast<std::int64_t>(ids.size()) - done; }

  std::vector<std::int32_t> ids;
  std::int64_t done = 0;
  std::vector<std::byte*> blocks;
  std::vector<float> hidden;  // [T, E] before the final norm
  std::vector<float> logits;  // [T, V]

 private:
  std::vector<AlignedBuffer> storage_;
  std::array<AlignedBuffer, 2> slots_;  // of models with recurrent layers
  std::size_t current_ = 0;
  RecurrentStore store_;
};

// A loaded model on a device of its own, with scratch for steps of at most `step_tokens`, planned exactly.
class Runner {
 public:
  Runner(const std::filesystem::path& path, Precision precision, int threads = 2, const KernelTable* table = nullptr,
         std::int64_t step_tokens = 512)
      : device(make_cpu_device(threads, table != nullptr ? *table : kernels())),
        source(open_model_source(path)),
        model(load_model(*source, precision, *device)),
        limits{step_tokens, 32, step_tokens, 8192},
        arena(model->scratch_bytes(*device, limits)) {}

  const Declaration& declaration() const { return model->declaration(); }

  // One step: tokens[i] of sequence i (0: it sits out).
  void step(std::vector<Sequence*> sequences, const std::vector<std::int64_t>& tokens) {
    const Declaration& d = declaration();
    std::vector<std::int32_t> ids;
    std::vector<BatchRow> rows;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      Sequence& s = *sequences[i];
      if (tokens[i] == 0) continue;
      const auto begin = static_cast<std::int64_t>(ids.size());
      ids.insert(ids.end(), s.ids.begin() + s.done, s.ids.begin() + s.done + tokens[i]);
      rows.push_back(s.batch_row(begin, tokens[i]));
    }
    std::vector<std::uint32_t> faults(ids.size());
    Arena::Scope scope(arena);
    const Step step{*device, arena, faults.data()};
    const Tensor h = model->forward(step, {ids, rows});
    std::vector<std::int64_t> picks(ids.size());
    for (std::size_t t = 0; t < picks.size(); ++t) picks[t] = static_cast<std::int64_t>(t);
    const Tensor hidden = arena.tensor(h.rows, d.width), logits = arena.tensor(h.rows, d.vocab);
    device->gather(h, picks, hidden);
    model->head(step, hidden, logits);
    std::int64_t t = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      if (tokens[i] == 0) continue;
      Sequence& s = *sequences[i];
      for (std::int64_t at = s.done; at < s.done + tokens[i]; ++at, ++t) {
        std::copy_n(h.row(t), d.width, s.hidden.begin() + at * d.width);
        std::copy_n(logits.row(t), d.vocab, s.logits.begin() + at * d.vocab);
      }
      s.advance(tokens[i]);
    }
    EXPECT_EQ(std::count(faults.begin(), faults.end(), 0U), static_cast<std::int64_t>(faults.size()));
  }

  // The whole sequence alone, in chunks.
  Sequence run(const std::vector<std::int32_t>& ids, std::int64_t chunk = 512) {
    Sequence s(declaration(), ids);
    while (s.left() > 0) step({&s}, {std::min(chunk, s.left())});
    return s;
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<ModelSource> source;
  std::unique_ptr<Model> model;
  StepLimits limits;
  Arena arena;
};

inline std::filesystem::path goldens() { return std::filesystem::path(OUTRIDER_SOURCE_DIR) / "oracles/goldens"; }

template <class T>
std::vector<T> read_tensor(const SafetensorsFile& file, std::string_view name) {
  const StoredTensor* tensor = file.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  std::vector<T> values(tensor->bytes / sizeof(T));
  std::memcpy(values.data(), file.bytes(*tensor).data(), tensor->bytes);
  return values;
}

// A directory that is removed with its files.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "outrider_models_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace outrider
