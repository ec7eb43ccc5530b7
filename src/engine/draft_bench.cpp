#include "engine/draft_bench.h"

#include <algorithm>
#include <utility>

#include "engine/draft_tokens.h"
#include "engine/held_prompts.h"
#include "engine/model_text_source.h"
#include "engine/speed.h"
#include "weights/draft_ranking.h"
#include "weights/local_models.h"

namespace outrider {
namespace {

constexpr std::int64_t kTurnTokens = 16;         // of each row
constexpr std::int64_t kWarmUpTokens = 32;       // in which the controller learns what passes and steps cost
constexpr std::int64_t kAhead = 64;              // tokens that the fastest row may be ahead of the mean
constexpr std::int64_t kScriptedPrompt = 64;     // tokens
constexpr std::int64_t kMostPromptTokens = 256;  // of a held prompt, in any tokenizer worth the name

std::int64_t answer_tokens_of(const DraftBenchPlan& plan) { return kWarmUpTokens + plan.turns * kTurnTokens + kAhead; }

// The options of an engine that runs one way. Rows of text are not proposed: the head alone is measured.
LoadOptions options_of(LoadOptions options, const DraftBenchPlan& plan, const DraftWay& way, std::int64_t rows) {
  options.max_rows = options.planned_rows = rows;
  options.draft_tokens = way.depth;
  options.text_drafts = TextDrafts::off;
  options.prefill_step_tokens = 256;
  options.context_tokens =
      (plan.acceptance.empty() ? kMostPromptTokens : kScriptedPrompt) + answer_tokens_of(plan) + way.depth + 1;
  return options;
}

// Error (memory, usage) as the constructor's. All ways of the most rows are there at a time.
void check_memory(const LoadOptions& options, const DraftBenchPlan& plan, const ModelSource& source,
                  const Device& device) {
  std::vector<DraftWay> ways = plan.ways;
  ways.push_back({});
  const std::int64_t rows = *std::max_element(plan.rows.begin(), plan.rows.end());
  const std::uint64_t model_bytes = plan_model(source, options.precision).weight_bytes;
  MemoryPlan all;
  all.parts[MemoryPart::weights] = model_bytes;
  for (const DraftWay& way : ways) {
    MemoryPlan each = plan_engine(options_of(options, plan, way, rows), source, device, 0).memory;
    for (auto& [part, bytes] : each.parts) {
      if (part == MemoryPart::fixed)
        all.parts[part] = bytes;
      else  // the model is there once, a draft vocabulary for each way
        all.parts[part] += part == MemoryPart::weights ? bytes - model_bytes : bytes;
    }
    all.budget_bytes = each.budget_bytes;
    all.rows = rows;
    all.context_tokens = std::max(all.context_tokens, each.context_tokens);
  }
  all.parts[MemoryPart::fixed] += probe_bytes();
  for (const auto& [part, bytes] : all.parts) all.planned_bytes += bytes;
  all.max_context_tokens[1] = 0;
  if (!all.fits()) throw over_budget(all);
}

std::unique_ptr<ModelSource> open(const LoadOptions& options) {
  return open_model_source(resolve_model(options.model), options.reading);
}

void check_plan(const LoadOptions& options, const DraftBenchPlan& plan, const ModelSource& source) {
  OUTRIDER_CHECK(!plan.rows.empty() && plan.turns > 0);
  if (plan_graph(source, options.precision)->native_draft() == nullptr)
    throw Error(ErrorKind::usage, fmt::format("{} has no MTP head to measure", options.model),
                "see `outrider models info`; the small model that comes with the program has one");
  if (plan.acceptance.empty() && estimated_text_bytes(source.path()) == 0)
    throw Error(ErrorKind::usage, fmt::format("{} has no tokenizer for the held prompts", options.model),
                "script which proposals stand, such as --acceptance 0.85,0.67,0.52");
  for (const DraftWay& way : plan.ways)
    OUTRIDER_CHECK(plan.acceptance.empty() || way.depth <= std::ssize(plan.acceptance));
}

}  // namespace

std::string name_of(const DraftWay& way) {
  switch (way.kind) {
    case DraftWay::Kind::plain:
      return "plain";
    case DraftWay::Kind::off:
      return "off";
    case DraftWay::Kind::controller:
      return "controller";
    case DraftWay::Kind::fixed:
      return fmt::format("depth {}", way.depth);
  }
  OUTRIDER_CHECK(false, "way {}", static_cast<int>(way.kind));
}

std::optional<double> rows_where_gain_ends(std::span<const std::int64_t> rows, std::span<const double> gains) {
  for (std::size_t i = 1; i < gains.size(); ++i) {
    const double above = gains[i - 1] - 1, below = 1 - gains[i];
    if (above < 0 || below <= 0) continue;
    return static_cast<double>(rows[i - 1]) + static_cast<double>(rows[i] - rows[i - 1]) * above / (above + below);
  }
  return std::nullopt;
}

void DraftBench::check(const LoadOptions& options, const DraftBenchPlan& plan) {
  const auto source = open(options);
  check_plan(options, plan, *source);
  check_memory(options, plan, *source, *make_cpu_device(options.threads));
}

DraftBench::DraftBench(const LoadOptions& options, DraftBenchPlan plan)
    : options_(options), plan_(std::move(plan)), source_(open(options)), device_(make_cpu_device(options.threads)) {
  check_plan(options_, plan_, *source_);
  check_memory(options_, plan_, *source_, *device_);
  model_plan_ = plan_model(*source_, options_.precision);
  known_tokens_ = model_plan_.declaration.vocab;
  if (plan_.acceptance.empty()) {
    const std::optional<ModelText> text = load_text_of(source_->path());
    OUTRIDER_CHECK(text.has_value());
    known_tokens_ = std::min<std::int64_t>(known_tokens_, text->tokenizer.size());
    indispensable_ = indispensable_tokens(text->tokenizer);
    for (const std::string_view prompt : held_prompts()) {
      prompts_.push_back(text->tokenizer.encode(prompt, AddSpecial::yes, ParseSpecial::no));
      prompts_.back().resize(std::min<std::size_t>(prompts_.back().size(), kMostPromptTokens));
    }
  } else {
    prompts_.emplace_back();
    for (std::int64_t i = 0; i < kScriptedPrompt; ++i)  // 7919 is prime: neighbours embed rows far from each other
      prompts_[0].push_back(static_cast<std::int32_t>((i + 1) * 7919 % known_tokens_));
  }
  model_ = load_model(*source_, options_.precision, *device_);
  probe_ = std::make_unique<MachineProbe>(*device_, probe_bytes());
  if (!plan_.acceptance.empty()) record_answer();
}

DraftBench::~DraftBench() = default;

std::int64_t DraftBench::answer_tokens() const { return answer_tokens_of(plan_); }

std::vector<std::vector<Request>> DraftBench::groups(std::int64_t rows) const {
  std::vector<std::vector<Request>> out;
  const std::int64_t prompts = std::ssize(prompts_);
  for (std::int64_t first = 0; first < prompts; first += rows) {
    std::vector<Request>& group = out.emplace_back();
    for (std::int64_t r = 0; r < rows; ++r) {  // the last group is filled up from the front
      Request request;
      request.ids = prompts_[static_cast<std::size_t>((first + r) % prompts)];
      request.max_tokens = answer_tokens();
      request.sampling.ignore_eos = true;
      group.push_back(std::move(request));
    }
  }
  return out;
}

// What the target says to the one prompt: a proposal that shall stand must be known before its round.
void DraftBench::record_answer() {
  const std::unique_ptr<DraftStream> plain = stream({}, 1);
  plain->begin(groups(1)[0]);
  plain->advance(answer_tokens());
  answer_ = plain->end()[0].ids;
}

std::unique_ptr<DraftStream> DraftBench::stream(const DraftWay& way, std::int64_t rows) const {
  CoreLimits limits = plan_engine(options_of(options_, plan_, way, rows), *source_, *device_, 0).limits;
  limits.speculation.depths = way.kind == DraftWay::Kind::fixed ? DraftDepths::fixed : DraftDepths::measured;
  std::unique_ptr<ScriptedAcceptance> script;
  if (!plan_.acceptance.empty() && way.kind != DraftWay::Kind::plain)
    script = std::make_unique<ScriptedAcceptance>(plan_.acceptance, answer_, model_plan_.declaration.vocab);
  std::vector<std::int32_t> vocabulary;
  if (const std::int64_t count = limits.speculation.vocabulary_rows; count > 0) {
    const std::int64_t vocab = model_plan_.declaration.vocab;
    vocabulary = draft_tokens(count, vocab, indispensable_, {}, read_draft_ranking(source_->path(), vocab));
  }
  return std::make_unique<DraftStream>(*model_, *device_, limits, known_tokens_, std::move(vocabulary),
                                       std::move(script));
}

std::int64_t DraftBench::draft_vocabulary_tokens() const {
  const LoadOptions options = options_of(options_, plan_, {DraftWay::Kind::controller, 1}, 1);
  return plan_engine(options, *source_, *device_, 0).limits.speculation.vocabulary_rows;
}

DraftBench::Measured DraftBench::measure(std::int64_t rows, const std::function<bool()>& stop) {
  std::vector<std::unique_ptr<DraftStream>> streams;
  streams.push_back(stream({}, rows));
  for (const DraftWay& way : plan_.ways) streams.push_back(stream(way, rows));
  Measured out;
  out.ways.resize(plan_.ways.size());
  std::int64_t warm_up = kWarmUpTokens;
  for (const std::vector<Request>& group : groups(rows)) {
    if (stop && stop()) break;
    const std::vector<DraftTotals> totals = measure_group(streams, group, std::exchange(warm_up, 0), stop);
    out.plain += totals[0];
    for (std::size_t i = 0; i < out.ways.size(); ++i) out.ways[i] += totals[i + 1];
  }
  return out;
}

std::vector<DraftTotals> DraftBench::measure_group(std::span<const std::unique_ptr<DraftStream>> streams,
                                                   std::span<const Request> requests, std::int64_t warm_up,
                                                   const std::function<bool()>& stop) const {
  std::vector<DraftTotals> totals(streams.size());
  std::vector<Request> own(requests.begin(), requests.end());
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const bool off = i > 0 && plan_.ways[i - 1].kind == DraftWay::Kind::off;
    for (Request& request : own) request.draft_tokens = off ? std::optional<std::int64_t>(0) : std::nullopt;
    streams[i]->begin(own);
    if (warm_up > 0) streams[i]->advance(warm_up);
  }
  for (std::int64_t turn = 0; turn < plan_.turns && !(stop && stop()); ++turn)
    for (std::size_t i = 0; i < streams.size(); ++i) totals[i] += streams[i]->advance(kTurnTokens);
  const std::vector<DraftStream::Answer> plain = streams[0]->end();
  for (std::size_t i = 1; i < streams.size(); ++i) {
    const std::vector<DraftStream::Answer> answers = streams[i]->end();
    for (std::size_t r = 0; r < answers.size(); ++r) {
      const std::size_t both = std::min(answers[r].ids.size(), plain[r].ids.size());
      if (!std::equal(plain[r].ids.begin(), plain[r].ids.begin() + static_cast<std::ptrdiff_t>(both),
                      answers[r].ids.begin()))
        throw Error(ErrorKind::runtime,
                    fmt::format("with the way \"{}\" row {} answers otherwise than without drafts",
                                name_of(plan_.ways[i - 1]), r),
                    "this is a fault of the program; please report it with the model and the command");
    }
  }
  return totals;
}

double DraftBench::most_tokens_per_s(std::int64_t rows, const MachineLimits& limits) const {
  const std::int64_t context = std::ssize(prompts_[0]) + answer_tokens() / 2;
  const StepShape shape = {.rows = rows, .context = context};
  return static_cast<double>(rows) /
         least_seconds(model_plan_.work, model_plan_.declaration.kv.token_bytes(), limits, shape);
}

}  // namespace outrider
