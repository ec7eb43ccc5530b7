#include "engine/plan.h"

#include <algorithm>
#include <limits>

#include "base/saturating.h"
#include "engine/draft_tokens.h"
#include "engine/model_text_source.h"
#include "engine/sampler.h"
#include "weights/draft_ranking.h"

namespace outrider {
namespace {

// The allowance for code, stacks, the heap of small objects and the transients of loading (serving.md 5.1).
constexpr std::uint64_t kFixedBytes = std::uint64_t{64} << 20;
// One row's stream mailbox (serving.md 5.1).
constexpr std::uint64_t kMailboxBytes = std::uint64_t{256} << 10;
constexpr double kBudgetShare = 0.75;
// Of what the smallest context leaves of the budget, the part that is for stored prefixes unless told (serving.md 1.5).
constexpr std::uint64_t kPrefixShareOfRest = 4;
constexpr std::int64_t kHeadRowsOfWindows = 32;
// Far beyond any machine, and small enough that tokens times widths of a real file cannot overflow.
constexpr std::int64_t kMostRows = 65536;
constexpr std::int64_t kMostPrefillStep = std::int64_t{1} << 20;
constexpr std::uint64_t kMostPrefixBytes = std::uint64_t{1} << 50;

std::uint64_t sum_of(const std::map<MemoryPart, std::uint64_t>& parts) {
  std::uint64_t sum = 0;
  for (const auto& [part, bytes] : parts) sum = saturating_add(sum, bytes);
  return sum;
}

SpeculationLimits speculation_limits(const LoadOptions& o, const ModelSource& source, const Model& graph) {
  const bool has_head = o.reading.mtp != MtpUse::off && graph.native_draft() != nullptr;
  SpeculationLimits limits;
  limits.head = has_head ? SpeculationLimits::Head::use : SpeculationLimits::Head::ignore;
  limits.drafts_text = o.text_drafts == TextDrafts::on;
  const bool drafts = has_head || limits.drafts_text;
  const bool refuses = o.idle_drafts == LoadOptions::IdleDrafts::refused;
  if (refuses && !drafts && o.draft_tokens.value_or(0) > 0)
    throw Error(
        ErrorKind::usage,
        fmt::format("up to {} drafts are asked for, and nothing drafts: --text-drafts is off, and {} has no MTP "
                    "head that is used",
                    *o.draft_tokens, source.path().string()),
        "leave --num-draft-tokens, --spec-rule and --spec-fixed-depth out, or --text-drafts off");
  if (refuses && !has_head && o.draft_vocabulary_tokens.value_or(0) > 0)
    throw Error(ErrorKind::usage,
                fmt::format("--draft-vocab is {}, and {} has no MTP head that is used", *o.draft_vocabulary_tokens,
                            source.path().string()),
                "leave --draft-vocab out, or say 0; `outrider models info` tells of a head");
  limits.depth = drafts ? o.draft_tokens.value_or(LoadOptions::kUsualDraftTokens) : 0;
  if (limits.depth == 0 || !has_head) return limits;
  const std::int64_t vocab = graph.declaration().vocab;
  const bool by_model = !o.draft_vocabulary_tokens;
  const std::int64_t ranked = by_model ? std::ssize(read_draft_ranking(source.path(), vocab)) : 0;
  limits.vocabulary_rows = draft_token_count(o.draft_vocabulary_tokens, vocab, ranked);
  return limits;
}

// The terms of serving.md 5.1 for one model; contexts and rows vary.
class Costs {
 public:
  Costs(const LoadOptions& options, const ModelSource& source, const ModelPlan& model, const Device& device,
        std::uint64_t text_bytes)
      : options_(options),
        model_(model),
        graph_(plan_graph(source, options.precision)),
        speculation_(speculation_limits(options, source, *graph_)),
        device_(device),
        text_bytes_(text_bytes) {}

  CoreLimits limits(std::int64_t context, std::int64_t rows) const {
    CoreLimits limits;
    // A hybrid's state is planned per row; KV blocks are shared by as many rows as there may be.
    limits.schedule.rows = recurrent() ? rows : std::max(options_.max_rows, rows);
    limits.speculation = speculation_;
    limits.schedule.prefill_step_tokens = std::min(options_.prefill_step_tokens, std::max<std::int64_t>(context, 1));
    limits.schedule.prompt_rows = options_.prompt_rows;
    limits.schedule.kv_blocks = rows * planned_kv_blocks(context, 0);
    // The head is read once for the windows of a few rows; those of many are bound by arithmetic in any case.
    const std::int64_t in_windows = std::min(limits.schedule.rows * (limits.speculation.depth + 1), kHeadRowsOfWindows);
    limits.head_rows = options_.head_rows > 0 ? options_.head_rows : std::max(limits.schedule.rows, in_windows);
    limits.context_tokens = context;
    limits.prefix_bytes = options_.prefix_cache_bytes.value_or(0);
    return limits;
  }

  std::map<MemoryPart, std::uint64_t> parts(std::int64_t context, std::int64_t rows) const {
    const CoreLimits core = limits(context, rows);
    const std::int64_t vocab = model_.declaration.vocab;
    const std::int64_t windows = core.speculation.depth + 1;
    const std::uint64_t row = kMailboxBytes + static_cast<std::uint64_t>(windows * vocab) * sizeof(float) +
                              Speculation::row_bytes(*graph_, core.speculation, context);
    const std::uint64_t block =
        model_.declaration.kv.block_bytes() + Speculation::block_bytes(*graph_, core.speculation);
    const std::uint64_t blocks = saturating_mul(static_cast<std::uint64_t>(core.schedule.kv_blocks), block);
    const std::uint64_t choosing =
        Sampler::scratch_bytes(vocab) + device_.normalizer_scratch_bytes(core.head_rows, vocab);
    std::map<MemoryPart, std::uint64_t> parts = {
        {MemoryPart::weights, model_.weight_bytes + Speculation::weight_bytes(*graph_, core.speculation)},
        {MemoryPart::kv, saturating_add(blocks, saturating_mul(static_cast<std::uint64_t>(rows), row))},
        {MemoryPart::scratch, Core::scratch_bytes(*graph_, device_, core) + choosing},
        {MemoryPart::text, text_bytes_},
        {MemoryPart::fixed, kFixedBytes}};
    if (recurrent()) {
      const RecurrentCapacity of_rows = Core::recurrent_capacity(core);
      parts[MemoryPart::recurrent] = of_rows.row_bytes(model_.declaration.recurrent);
    }
    if (core.prefix_bytes > 0) parts[MemoryPart::prefix] = core.prefix_bytes;
    return parts;
  }
  bool holds_prefixes(std::uint64_t bytes) const {
    return prefix_capacity(PrefixCache::parts_of(*graph_, speculation_), bytes).blocks > 0;
  }
  // What is for stored prefixes when nobody says: the same for every context, so that a long one leaves some.
  std::uint64_t usual_prefix_bytes(std::uint64_t budget, std::int64_t rows) const {
    const std::uint64_t least = total(context_of(1, model_.declaration.context_tokens), rows);
    const std::uint64_t share = least < budget ? (budget - least) / kPrefixShareOfRest : 0;
    return holds_prefixes(share) ? share : 0;
  }

  std::uint64_t total(std::int64_t context, std::int64_t rows) const { return sum_of(parts(context, rows)); }

  // The largest context of `rows` rows within the budget, at most the model's; 0: none. Costs grow with the context in
  // whole KV blocks, so blocks are searched.
  std::int64_t largest_context(std::uint64_t budget, std::int64_t rows) const {
    const std::int64_t most = model_.declaration.context_tokens;
    if (total(most, rows) <= budget) return most;  // the common case: a plan costs a walk over all headers
    std::int64_t fits = 0, fails = planned_kv_blocks(most, 0);
    while (fails - fits > 1) {
      const std::int64_t middle = fits + (fails - fits) / 2;
      (total(context_of(middle, most), rows) <= budget ? fits : fails) = middle;
    }
    return fits == 0 ? 0 : context_of(fits, most);
  }

 private:
  bool recurrent() const { return model_.declaration.recurrent.layers > 0; }

  // The longest context whose plan takes `blocks` blocks: one position is kept for the pending token.
  static std::int64_t context_of(std::int64_t blocks, std::int64_t most) {
    return std::min(blocks * kBlockKeys - 1, most);
  }

  const LoadOptions& options_;
  const ModelPlan& model_;
  std::unique_ptr<Model> graph_;  // shapes only
  SpeculationLimits speculation_;
  const Device& device_;
  std::uint64_t text_bytes_;
};

void check_options(const LoadOptions& o, std::int64_t model_context) {
  const auto within = [](std::string_view name, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value < least)
      throw Error(ErrorKind::usage, fmt::format("{} is {}, the least is {}", name, value, least),
                  "name a value that is allowed");
    if (value > most)
      throw Error(ErrorKind::usage, fmt::format("{} is {}, the most is {}", name, value, most),
                  "name a value that is allowed");
  };
  within("the number of rows", o.max_rows, 1, kMostRows);
  within("the number of planned rows", o.planned_rows, 1, kMostRows);
  within("the number of rows that share a prefill step", o.prompt_rows, 1, kMostRows);
  within("the prefill step", o.prefill_step_tokens, 1, kMostPrefillStep);
  within("the number of head rows", o.head_rows, 0, kMostRows);
  within("the number of draft tokens", o.draft_tokens.value_or(0), 0, kMaxDraftDepth);
  if (o.prefix_cache_bytes.value_or(0) > kMostPrefixBytes)
    throw Error(ErrorKind::usage,
                fmt::format("the prompt cache is {} bytes, the most is {}", *o.prefix_cache_bytes, kMostPrefixBytes),
                "name a smaller --prompt-cache-bytes");
  within("the draft vocabulary", o.draft_vocabulary_tokens.value_or(0), 0, std::numeric_limits<std::int32_t>::max());
  if (o.context_tokens < 0)
    throw Error(ErrorKind::usage, fmt::format("a context of {} tokens, the least is 0", o.context_tokens),
                "name a value that is allowed");
  if (o.context_tokens > model_context)
    throw Error(ErrorKind::usage,
                fmt::format("a context of {} tokens exceeds the model's {}", o.context_tokens, model_context),
                "ask for a smaller context");
}

}  // namespace

std::uint64_t budget_bytes(const LoadOptions& options) {
  if (options.memory_budget_bytes > 0) return options.memory_budget_bytes;
  return static_cast<std::uint64_t>(kBudgetShare * static_cast<double>(usable_memory_bytes()));
}

EnginePlan plan_engine(const LoadOptions& options, const ModelSource& source, const Device& device,
                       std::uint64_t text_bytes) {
  EnginePlan plan;
  plan.model = plan_model(source, options.precision);
  check_options(options, plan.model.declaration.context_tokens);
  MemoryPlan& memory = plan.memory;
  memory.budget_bytes = budget_bytes(options);
  memory.kv_bytes_per_token = plan.model.declaration.kv.token_bytes();
  const Costs costs(options, source, plan.model, device, text_bytes);
  for (const int rows : {1, 4, 16}) memory.max_context_tokens[rows] = costs.largest_context(memory.budget_bytes, rows);
  memory.rows = options.planned_rows;
  memory.context_tokens = options.context_tokens;
  const std::uint64_t prefixes =
      options.prefix_cache_bytes ? 0 : costs.usual_prefix_bytes(memory.budget_bytes, memory.rows);
  if (memory.context_tokens == 0) {
    // Where nothing fits the plan is that of the smallest context, to show by how much it fails.
    const std::int64_t largest = costs.largest_context(memory.budget_bytes - prefixes, memory.rows);
    memory.context_tokens = largest > 0 ? largest : std::min(kBlockKeys - 1, plan.model.declaration.context_tokens);
  }
  memory.parts = costs.parts(memory.context_tokens, memory.rows);
  memory.planned_bytes = sum_of(memory.parts);
  plan.limits = costs.limits(memory.context_tokens, memory.rows);
  const std::uint64_t rest = memory.fits() ? memory.budget_bytes - memory.planned_bytes : 0;
  if (const std::uint64_t share = std::min(prefixes, rest); costs.holds_prefixes(share)) {
    plan.limits.prefix_bytes = memory.parts[MemoryPart::prefix] = share;
    memory.planned_bytes += share;
  }
  return plan;
}

Error over_budget(const MemoryPlan& plan) {
  std::string parts;
  for (const auto& [part, bytes] : plan.parts)
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name_of(part), bytes);
  const std::int64_t largest = plan.max_context_tokens.at(1);
  return {ErrorKind::memory,
          fmt::format("{} bytes are planned for a context of {} tokens and {} row{} ({}), the budget is {}",
                      plan.planned_bytes, plan.context_tokens, plan.rows, plan.rows == 1 ? "" : "s", parts,
                      plan.budget_bytes),
          plan.rows == 1 && largest >= plan.context_tokens
              ? std::string("name a smaller --ctx, or raise --memory-budget")
          : largest > 0
              ? fmt::format("the largest context that fits one row is {} tokens; or raise --memory-budget", largest)
              : std::string("raise --memory-budget or take a smaller model")};
}

std::uint64_t step_weight_bytes(const ModelPlan& model) {
  std::uint64_t embedding = 0, head = 0, mtp = 0;
  for (const auto& [kind, bytes] : model.bytes_by_kind) {
    if (kind == "embedding") embedding += bytes;
    if (kind == "head") head += bytes;
    if (kind == "mtp") mtp += bytes;
  }
  return model.weight_bytes - mtp - (head > 0 ? embedding : 0);
}

MemoryPlan plan_memory(const LoadOptions& options) {
  const auto path = resolve_model(options.model);
  const auto source = open_model_source(path, options.reading);
  const auto device = make_cpu_device(options.threads);
  return plan_engine(options, *source, *device, estimated_text_bytes(path)).memory;
}

}  // namespace outrider
