#include "engine/step_bench.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/random.h"
#include "base/worker_pool.h"
#include "weights/local_models.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

// KV blocks of all shapes together: shapes of equal rows and context share rows, sized for the longest.
std::int64_t blocks_for(std::span<const StepShape> shapes) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> longest;
  for (const StepShape& s : shapes) {
    std::int64_t& tokens = longest[{s.rows, s.context}];
    tokens = std::max(tokens, s.tokens);
  }
  std::int64_t blocks = 0;
  for (const auto& [key, tokens] : longest) blocks += key.first * kv_blocks_for(key.second + tokens);
  return blocks;
}

// One block of positions for append(): f16 values of magnitude 1/4 to 1/2, both signs.
std::vector<std::byte> random_f16(std::size_t values, std::uint32_t seed) {
  std::vector<std::byte> bytes(values * 2);
  std::uint64_t state = seed;
  for (std::size_t i = 0; i < values; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX generator
    const auto bits = static_cast<std::uint16_t>(((state >> 48) & 0x83ffU) | 0x3400U);
    std::memcpy(bytes.data() + 2 * i, &bits, 2);
  }
  return bytes;
}

// Positions of random keys and values behind a recurrent state of zeros.
StateRow filled_row(StatePool& pool, std::int64_t context) {
  KvRow row(pool.kv());
  const KvLayout& kv = pool.kv().layout();
  const auto of_token = static_cast<std::size_t>(kv.layers * kv.kv_heads * kv.head_width);
  const std::vector<std::byte> k = random_f16(of_token * kBlockKeys, 1), v = random_f16(of_token * kBlockKeys, 2);
  for (std::int64_t done = 0; done < context; done += kBlockKeys) {
    const std::int64_t tokens = std::min(kBlockKeys, context - done);
    const std::size_t bytes = of_token * static_cast<std::size_t>(tokens) * 2;
    row.append({k.data(), bytes}, {v.data(), bytes}, tokens);
  }
  std::optional<RecurrentRow> recurrent;
  if (pool.recurrent() != nullptr) {
    recurrent.emplace(*pool.recurrent());
    if (context > 0) recurrent->load(context, std::vector<std::byte>(pool.recurrent()->layout().slot_bytes()));
  }
  return StateRow(std::move(row), std::move(recurrent));
}

// Of every row the state it starts from and what its steps store beside it.
RecurrentCapacity recurrent_for(std::span<const StepShape> shapes) {
  struct OfARow {
    std::int64_t slots = 0, logs = 0;
  };
  std::map<std::pair<std::int64_t, std::int64_t>, OfARow> most;
  RecurrentCapacity capacity;
  for (const StepShape& s : shapes) {
    OfARow& row = most[{s.rows, s.context}];
    row.slots = std::max(row.slots, 2 + s.tokens / kPromptStepTokens);
    if (s.head != StepShape::Head::every || s.tokens == 1) continue;
    row.logs = 1;
    capacity.log_tokens = std::max(capacity.log_tokens, s.tokens - 1);
  }
  for (const auto& [key, of_a_row] : most) {
    capacity.row_slots += key.first * of_a_row.slots;
    capacity.row_logs += key.first * of_a_row.logs;
  }
  return capacity;
}

// Error (memory, usage) as the constructor's.
EnginePlan plan_steps(LoadOptions options, std::span<const StepShape> shapes, const ModelSource& source,
                      const Device& device) {
  OUTRIDER_CHECK(!shapes.empty() && options.precision == Precision::packed);
  options.max_rows = options.planned_rows = options.head_rows = 1;
  options.prefill_step_tokens = kPromptStepTokens;
  options.draft_tokens = 0;
  for (const StepShape& s : shapes) {
    options.context_tokens = std::max(options.context_tokens, s.context + s.tokens);
    options.max_rows = options.planned_rows = std::max(options.max_rows, s.rows);
    options.head_rows = std::max(options.head_rows, s.head == StepShape::Head::every ? s.rows * s.tokens : s.rows);
  }
  EnginePlan plan = plan_engine(options, source, device, 0);
  MemoryPlan& memory = plan.memory;
  plan.limits.schedule.kv_blocks = blocks_for(shapes);
  const std::uint64_t kv =
      static_cast<std::uint64_t>(plan.limits.schedule.kv_blocks) * plan.model.declaration.kv.block_bytes();
  memory.planned_bytes += kv + probe_bytes() - memory.parts[MemoryPart::kv];
  memory.parts[MemoryPart::kv] = kv;
  if (const RecurrentLayout& recurrent = plan.model.declaration.recurrent; recurrent.layers > 0) {
    const std::uint64_t states = recurrent_for(shapes).row_bytes(recurrent);
    memory.planned_bytes += states - memory.parts[MemoryPart::recurrent];
    memory.parts[MemoryPart::recurrent] = states;
  }
  memory.parts[MemoryPart::fixed] += probe_bytes();
  memory.rows = options.max_rows;
  if (!memory.fits()) throw over_budget(memory);
  return plan;
}

}  // namespace

StepBench::StepBench(LoadOptions options, std::span<const StepShape> shapes) {
  const auto source = open_model_source(resolve_model(options.model), options.reading);
  device_ = make_cpu_device(options.threads);
  plan_ = plan_steps(options, shapes, *source, *device_);
  loaded_ = load_model(*source, options.precision, *device_);
  const Declaration& graph = plan_.model.declaration;
  pool_ = std::make_unique<StatePool>(StateLayout{graph.kv, graph.recurrent},
                                      StateCapacity{plan_.limits.schedule.kv_blocks, 0, recurrent_for(shapes)});
  arena_ = std::make_unique<Arena>(loaded_->scratch_bytes(*device_, Core::step_limits(plan_.limits)));
  probe_ = std::make_unique<MachineProbe>(*device_, probe_bytes());
  for (const StepShape& s : shapes) rows_of(s);
}

void StepBench::check(const LoadOptions& options, std::span<const StepShape> shapes) {
  const auto source = open_model_source(resolve_model(options.model), options.reading);
  plan_steps(options, shapes, *source, *make_cpu_device(options.threads));
}

StepBench::Rows& StepBench::rows_of(const StepShape& shape) {
  Rows& rows = rows_[{shape.rows, shape.context}];
  while (static_cast<std::int64_t>(rows.size()) < shape.rows) rows.push_back(filled_row(*pool_, shape.context));
  return rows;
}

double StepBench::seconds(const StepShape& shape) {
  Rows& rows = rows_of(shape);
  const std::int64_t most = shape.rows == 1 ? kPromptStepTokens : shape.tokens;
  const bool window = shape.head == StepShape::Head::every;
  const auto reserve = [&](std::int64_t tokens) {
    for (StateRow& row : rows) row.reserve(tokens, {window ? StorePositions::every : StorePositions::at_end});
  };
  for (StateRow& row : rows) row.round_begin();
  reserve(std::min(most, shape.tokens));  // may clear blocks: kept out of the time, as it is once in 64
  enter_float_environment();
  const auto begin = Clock::now();
  for (std::int64_t done = 0; done < shape.tokens; done += most) {
    const std::int64_t tokens = std::min(most, shape.tokens - done);
    if (done > 0) reserve(tokens);
    const std::int64_t last = done + tokens == shape.tokens ? 1 : 0;
    step(rows, tokens, shape.context + shape.tokens, window ? tokens : last);
    for (StateRow& row : rows) row.advance(tokens);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  for (StateRow& row : rows) row.round_rollback(0);
  return seconds;
}

// Logits of the last `picks_per_row` tokens of each row, and the largest of each.
void StepBench::step(Rows& rows, std::int64_t tokens, std::int64_t planned_tokens, std::int64_t picks_per_row) {
  const Declaration& model = plan_.model.declaration;
  std::vector<std::int32_t> ids;
  std::vector<BatchRow> batch;
  std::vector<std::int64_t> picks;
  for (StateRow& row : rows) {
    const auto begin = static_cast<std::int64_t>(ids.size());
    for (std::int64_t i = 0; i < tokens; ++i)  // 7919 is prime: neighbours embed rows far from each other
      ids.push_back(static_cast<std::int32_t>((row.length() + i + 1) * 7919 % model.vocab));
    batch.push_back(row.batch_row(begin, tokens, planned_tokens));
    for (std::int64_t i = tokens - picks_per_row; i < tokens; ++i) picks.push_back(begin + i);
  }
  const Arena::Scope scope(*arena_);
  std::vector<std::uint32_t> faults(ids.size(), 0);
  const Tensor hidden = loaded_->forward({*device_, *arena_, faults.data()}, {ids, batch});
  if (!picks.empty()) {
    const auto count = static_cast<std::int64_t>(picks.size());
    const Tensor picked = arena_->tensor(count, hidden.width), logits = arena_->tensor(count, model.vocab);
    std::vector<std::int32_t> chosen(picks.size());
    device_->gather(hidden, picks, picked);
    loaded_->head({*device_, *arena_, faults.data()}, picked, logits);
    device_->argmax(logits, chosen.data(), faults.data());
  }
  if (std::any_of(faults.begin(), faults.end(), [](std::uint32_t fault) { return fault != 0; }))
    throw Error(ErrorKind::data, "a value of the model's step is not finite", "try another model");
}

double StepBench::least_seconds(const StepShape& shape, const MachineLimits& limits) const {
  return outrider::least_seconds(plan_.model.work, plan_.model.declaration.kv.token_bytes(), limits, shape);
}

}  // namespace outrider
