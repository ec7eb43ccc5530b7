#include "engine/draft_readings.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/draft_stream.h"
#include "engine/held_prompts.h"
#include "engine/model_text_source.h"
#include "engine/plan.h"
#include "weights/local_models.h"

namespace outrider {
namespace {

constexpr std::int64_t kTextTokens = 20000;  // of all answers: models.md 4.3
constexpr std::int64_t kRows = 10;           // answers written side by side
constexpr std::int64_t kMostPromptTokens = 256;
constexpr std::int64_t kAnswerTokens = kTextTokens / static_cast<std::int64_t>(kHeldPromptCount);
constexpr std::int64_t kAhead = 200;      // tokens that the fastest row of a step may be ahead of the mean
constexpr std::int64_t kTurnTokens = 16;  // between two looks at `stop`
constexpr std::array kPolicies = {Refresh::from_target, Refresh::as_drafted};
static_assert(kHeldPromptCount % kRows == 0);
// Greedy answers of this length fall into repetitions, which any head predicts; sampled ones stay text.
constexpr double kTemperature = 1;

LoadOptions options_of(LoadOptions options, std::int64_t depth) {
  options.max_rows = options.planned_rows = kRows;
  options.draft_tokens = depth;
  options.text_drafts = TextDrafts::off;
  options.draft_vocabulary_tokens = 0;
  options.prefill_step_tokens = kMostPromptTokens;
  options.context_tokens = kMostPromptTokens + kAnswerTokens + kAhead + depth + 1;
  return options;
}

// The ways to read the head of these files, each to be loaded for itself.
std::vector<SourceOptions> source_readings(const LoadOptions& options) {
  if (options.reading.mtp_hidden && options.reading.idle == SourceOptions::Idle::refused)
    throw Error(ErrorKind::usage,
                fmt::format("--mtp-hidden {} is given, and the readings measure both taps",
                            name_of(*options.reading.mtp_hidden)),
                "leave --mtp-hidden out");
  const auto source = open_model_source(resolve_model(options.model), options.reading);
  const CheckpointFacts* facts = source->facts();
  const HeadState head = facts != nullptr ? facts->mtp.state : HeadState::absent;
  if (head != HeadState::ready && head != HeadState::ambiguous)
    throw Error(ErrorKind::usage, fmt::format("{} has no MTP head to read", options.model),
                "see `outrider models info`; the small model that comes with the program has one");
  std::vector<SourceOptions> out;
  for (const HiddenTap tap : {HiddenTap::pre_norm, HiddenTap::post_norm}) {
    SourceOptions reading = options.reading;
    reading.mtp_hidden = tap;
    if (head == HeadState::ready) {
      out.push_back(reading);
      continue;
    }
    for (const NormCentre norms : {NormCentre::zero, NormCentre::one}) {
      reading.mtp_norms = norms;
      out.push_back(reading);
    }
  }
  return out;
}

std::vector<Request> requests_of(const Tokenizer& tokenizer) {
  std::vector<Request> out;
  for (const std::string_view prompt : held_prompts()) {
    Request request;
    request.ids = tokenizer.encode(prompt, AddSpecial::yes, ParseSpecial::no);
    request.ids.resize(std::min<std::size_t>(request.ids.size(), kMostPromptTokens));
    request.max_tokens = kAnswerTokens + kAhead;
    request.sampling.temperature = kTemperature;
    request.sampling.seed = std::ssize(out) + 1;
    request.sampling.ignore_eos = true;
    out.push_back(std::move(request));
  }
  return out;
}

// Of the rounds behind the prompt; each emitted the target's own token and what stood.
RoundCounts counts_of(const DraftStream::Answer& answer, std::int64_t depth) {
  RoundCounts counts;
  counts.stood.resize(static_cast<std::size_t>(depth) + 1);
  for (std::size_t i = 1; i < answer.rounds.size(); ++i) ++counts.stood[static_cast<std::size_t>(answer.rounds[i] - 1)];
  return counts;
}

// part and whole of one prompt.
template <class Part, class Whole>
Estimate over_prompts(const DraftReading& reading, const Part& part, const Whole& whole) {
  std::vector<double> parts, wholes;
  for (const RoundCounts& counts : reading.prompts) {
    parts.push_back(part(counts));
    wholes.push_back(whole(counts));
  }
  return ratio_over_prompts(parts, wholes);
}

double rounds_from(const RoundCounts& counts, std::size_t stood) {
  double rounds = 0;
  for (std::size_t i = stood; i < counts.stood.size(); ++i) rounds += static_cast<double>(counts.stood[i]);
  return rounds;
}

std::string name_of_source(const DraftReading& reading) {
  std::string name = fmt::format("tap {}", name_of(reading.tap));
  if (!reading.norms_known) name += fmt::format(", norms {}", name_of(reading.norms));
  return name;
}

}  // namespace

std::string name_of(const DraftReading& reading) {
  return name_of_source(reading) +
         (reading.refresh == Refresh::from_target ? ", refresh from_target" : ", refresh as_drafted");
}

Estimate ratio_over_prompts(std::span<const double> part, std::span<const double> whole) {
  OUTRIDER_CHECK(part.size() == whole.size());
  double parts = 0, wholes = 0;
  for (std::size_t i = 0; i < part.size(); ++i) {
    parts += part[i];
    wholes += whole[i];
  }
  if (wholes == 0) return {};
  Estimate out{parts / wholes, 0};
  double squares = 0;
  for (std::size_t i = 0; i < part.size(); ++i) squares += std::pow(part[i] - out.value * whole[i], 2);
  const auto n = static_cast<double>(part.size());
  if (n > 1) out.error = std::sqrt(n / (n - 1) * squares) / wholes;
  return out;
}

Estimate accepted_at(const DraftReading& reading, std::size_t place) {
  return over_prompts(
      reading, [&](const RoundCounts& c) { return rounds_from(c, place + 1); },
      [&](const RoundCounts& c) { return rounds_from(c, place); });
}

Estimate accepted_length(const DraftReading& reading) {
  const auto tokens = [](const RoundCounts& c) {
    double sum = 0;
    for (std::size_t i = 0; i < c.stood.size(); ++i)
      sum += static_cast<double>(i + 1) * static_cast<double>(c.stood[i]);
    return sum;
  };
  return over_prompts(reading, tokens, [](const RoundCounts& c) { return rounds_from(c, 0); });
}

std::optional<ReadingLead> lead_of(std::span<const DraftReading> readings) {
  std::vector<const DraftReading*> order;
  for (const DraftReading& reading : readings)
    if (reading.refresh == Refresh::from_target) order.push_back(&reading);
  if (order.size() < 2) return std::nullopt;
  std::sort(order.begin(), order.end(), [](const DraftReading* a, const DraftReading* b) {
    return accepted_at(*a, 0).value > accepted_at(*b, 0).value;
  });
  const DraftReading &best = *order[0], &second = *order[1];
  OUTRIDER_CHECK(best.prompts.size() == second.prompts.size());
  // The difference of two ratios, linearized: its residual at a prompt is the difference of theirs.
  const Estimate a = accepted_at(best, 0), b = accepted_at(second, 0);
  double squares = 0, rounds_a = 0, rounds_b = 0;
  for (const RoundCounts& c : best.prompts) rounds_a += rounds_from(c, 0);
  for (const RoundCounts& c : second.prompts) rounds_b += rounds_from(c, 0);
  for (std::size_t i = 0; i < best.prompts.size(); ++i) {
    const auto residual = [](const RoundCounts& c, const Estimate& of, double rounds) {
      return (rounds_from(c, 1) - of.value * rounds_from(c, 0)) / rounds;
    };
    squares += std::pow(residual(best.prompts[i], a, rounds_a) - residual(second.prompts[i], b, rounds_b), 2);
  }
  const auto n = static_cast<double>(best.prompts.size());
  return ReadingLead{
      name_of_source(best), name_of_source(second), {a.value - b.value, n > 1 ? std::sqrt(n / (n - 1) * squares) : 0}};
}

void check_draft_readings(const LoadOptions& options, std::int64_t depth) {
  const auto device = make_cpu_device(options.threads);
  for (const SourceOptions& reading : source_readings(options)) {
    LoadOptions own = options_of(options, depth);
    own.reading = reading;
    const auto source = open_model_source(resolve_model(own.model), own.reading);
    const std::uint64_t text_bytes = estimated_text_bytes(source->path());
    if (text_bytes == 0)
      throw Error(ErrorKind::usage, fmt::format("{} has no tokenizer for the held prompts", options.model),
                  "put its tokenizer.json beside the weights");
    if (const MemoryPlan memory = plan_engine(own, *source, *device, text_bytes).memory; !memory.fits())
      throw over_budget(memory);
  }
}

std::vector<DraftReading> measure_draft_readings(const LoadOptions& options, std::int64_t depth,
                                                 const ReadingsProgress& progress, const std::function<bool()>& stop) {
  const auto device = make_cpu_device(options.threads);
  std::vector<DraftReading> out;
  const std::vector<SourceOptions> readings = source_readings(options);
  const std::int64_t all = std::ssize(readings) * std::ssize(kPolicies) * kTextTokens;
  std::int64_t done = 0;
  if (progress) progress(done, all);
  for (const SourceOptions& reading : readings) {
    LoadOptions own = options_of(options, depth);
    own.reading = reading;
    const auto source = open_model_source(resolve_model(own.model), own.reading);
    const auto model = load_model(*source, own.precision, *device);
    const std::optional<ModelText> text = load_text_of(source->path());
    OUTRIDER_CHECK(text.has_value());
    const std::vector<Request> requests = requests_of(text->tokenizer);
    const std::int64_t known = std::min<std::int64_t>(text->tokenizer.size(), model->declaration().vocab);
    for (const Refresh refresh : kPolicies) {
      CoreLimits limits = plan_engine(own, *source, *device, 0).limits;
      limits.speculation.depths = DraftDepths::fixed;
      limits.speculation.refresh = refresh;
      DraftStream stream(*model, *device, limits, known, {}, nullptr);
      DraftReading measured{*reading.mtp_hidden,
                            reading.mtp_norms.value_or(NormCentre::one),
                            !reading.mtp_norms.has_value(),
                            refresh,
                            {}};
      for (std::size_t first = 0; first < requests.size(); first += kRows) {
        stream.begin(std::span(requests).subspan(first, kRows));
        for (std::int64_t written = 0; written < kAnswerTokens; written += kTurnTokens) {
          if (stop && stop()) return out;
          stream.advance(kTurnTokens);
          done += kRows * std::min(kTurnTokens, kAnswerTokens - written);
          if (progress) progress(done, all);
        }
        for (const DraftStream::Answer& answer : stream.end()) measured.prompts.push_back(counts_of(answer, depth));
      }
      out.push_back(std::move(measured));
    }
  }
  return out;
}

}  // namespace outrider
