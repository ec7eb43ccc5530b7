#include "cli/generation_flags.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "cli/nearest_name.h"
#include "cli/option_layers.h"
#include "cli/option_values.h"
#include "cli/verb.h"

namespace outrider {
namespace {

// "ID=VALUE", VALUE a number or "false" (never).
std::pair<std::int32_t, float> bias_from(const std::string& text) {
  const std::size_t equals = text.find('=');
  std::int32_t id = 0;
  float bias = -std::numeric_limits<float>::infinity();
  bool good = equals != std::string::npos;
  if (good) {
    const char* middle = text.data() + equals;
    const auto head = std::from_chars(text.data(), middle, id);
    good = head.ec == std::errc() && head.ptr == middle && id >= 0;
    if (good && text.substr(equals + 1) != "false") {
      const auto tail = std::from_chars(middle + 1, text.data() + text.size(), bias);
      good = tail.ec == std::errc() && tail.ptr == text.data() + text.size();
    }
  }
  if (!good)
    throw Error(ErrorKind::usage, fmt::format("--logit-bias is \"{}\" (accepted: ID=NUMBER or ID=false)", text),
                "for example --logit-bias 5=-2.5");
  return {id, bias};
}

SpecRule rule_from(const std::string& name) {
  if (name == "greedy") return SpecRule::greedy;
  if (name == "coupled") return SpecRule::coupled;
  return name == "ratio" ? SpecRule::ratio : SpecRule::automatic;
}

template <class T, class U>
void take(const std::optional<U>& given, T& value) {
  if (given) value = static_cast<T>(*given);
}

}  // namespace

void GenerationFlags::define(CLI::App& verb) {
  Values& v = values_;
  const auto keep = [&](CLI::Option* option) { options_.push_back(option); };
  const auto whole = [&](const std::string& names, auto& value, const std::string& help, WholeRange range) {
    keep(add_whole(verb, names, value, help, range));
  };
  const auto decimal = [&](const std::string& names, auto& value, const std::string& help) {
    keep(add_decimal(verb, names, value, help));
  };
  const auto choice = [&](const std::string& name, std::string& value, const std::string& help,
                          const std::vector<std::string>& accepted) {
    keep(verb.add_option(name, value, help)->check(CLI::IsMember(accepted)));
  };
  whole("--max-tokens,-m", v.max_tokens,
        fmt::format("most tokens of an answer ({}, cut to the free context)", default_max_tokens_), kFromZero);
  decimal("--temp,--temperature", v.temperature, "0 to 5; 0 takes the likeliest token (the model's, else 0)");
  decimal("--top-p", v.top_p, "keep the likeliest tokens up to this probability mass (1)");
  decimal("--min-p", v.min_p, "drop tokens less likely than this share of the likeliest (0)");
  whole("--top-k", v.top_k, "keep this many likeliest tokens; 0 or -1: all (0)", {-1});
  whole("--min-tokens-to-keep", v.min_tokens_to_keep, "tokens min-p always keeps (1)", kFromOne);
  decimal("--xtc-probability", v.xtc_probability,
          "chance to drop the likeliest tokens but the last above the threshold (0)");
  decimal("--xtc-threshold", v.xtc_threshold, "0 to 0.5 (0.1)");
  whole("--seed", v.seed, "the same seed gives the same answer (random)", WholeRange{});
  decimal("--repetition-penalty", v.repetition_penalty,
          "divides positive and multiplies negative logits of seen tokens (off)");
  whole("--repetition-context-size", v.repetition_context_size, "last tokens it looks at; 0: all (20)", kFromZero);
  decimal("--presence-penalty", v.presence_penalty, "taken off the logits of seen tokens (0)");
  whole("--presence-context-size", v.presence_context_size, "last tokens it looks at; 0: all (0)", kFromZero);
  decimal("--frequency-penalty", v.frequency_penalty, "taken off once per time a token was seen (0)");
  whole("--frequency-context-size", v.frequency_context_size, "last tokens it looks at; 0: all (0)", kFromZero);
  choice("--penalty-scope", v.penalty_scope, "all or generated (repetition: all, the others: generated)",
         {"all", "generated"});
  keep(add_texts(verb, "--logit-bias", v.logit_bias, "ID=NUMBER or ID=false (never), repeatable"));
  choice("--sampler-order", v.sampler_order, "mlx or temperature_first (mlx)", {"mlx", "temperature_first"});
  choice("--sampling-defaults", v.sampling_defaults, "model (its generation_config.json) or mlx (greedy)",
         {"model", "mlx"});
  keep(add_texts(verb, "--stop", v.stop, "text that ends the answer, repeatable"));
  keep(verb.add_option("--stop-token-ids", v.stop_token_ids, "further end tokens, comma-separated"));
  keep(verb.add_flag("--include-stop-str-in-output", v.include_stop, "keep the stop text"));
  whole("--min-tokens", v.min_tokens, "no end before so many tokens (0)", kFromZero);
  keep(verb.add_flag("--ignore-eos", v.ignore_eos, "end tokens are never chosen"));
  keep(verb.add_flag("--logprobs", v.logprobs, "log-probabilities in the JSON"));
  whole("--top-logprobs", v.top_logprobs, "the likeliest 0 to 20 tokens of each position too (0)", {0, 20});
  choice("--spec-rule", v.spec_rule,
         "which drafts stand: auto (greedy at temperature 0, else coupled: the text is that without drafts), greedy, "
         "coupled, ratio (the distribution is) (auto)",
         {"auto", "greedy", "coupled", "ratio"});
  keep(verb.add_flag("--spec-fixed-depth", v.spec_fixed_depth,
                     "always draft as deep as allowed; with it ratio gives the same answer for the same seed"));
  choice("--logprobs-mode", v.logprobs_mode, "processed or raw (processed)", {"processed", "raw"});
}

CLI::Option& GenerationFlags::option_named(const std::string& name) const {
  std::string flag = name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  std::vector<std::string> known;
  for (CLI::Option* option : options_) {
    if (option->check_lname(flag)) return *option;
    known.insert(known.end(), option->get_lnames().begin(), option->get_lnames().end());
  }
  const std::string nearest = nearest_name(flag, known);
  throw Error(ErrorKind::usage, fmt::format("there is no setting {}", name),
              nearest.empty() ? "settings are the sampling and length flags of chat"
                              : fmt::format("did you mean {}?", nearest));
}

void GenerationFlags::set(const std::string& name, const std::string& value, const std::function<void()>& check) {
  CLI::Option& option = option_named(name);
  const Values before = values_;
  const std::vector<std::string> given = option.results();
  try {
    option.clear();
    option.add_result(value);
    option.run_callback();
    check();
    named_by_hand(option);
  } catch (...) {
    option.clear();
    for (const std::string& each : given) option.add_result(each);
    values_ = before;
    try {
      throw;
    } catch (const CLI::Error& fault) {
      throw Error(ErrorKind::usage, fault.what(), "/set takes what the flag takes, see outrider chat --help");
    }
  }
}

SamplingParams GenerationFlags::sampling(const ModelFacts& facts) const {
  const Values& v = values_;
  SamplingParams p = v.sampling_defaults == "model" ? facts.default_sampling : SamplingParams{};
  take(v.temperature, p.temperature);
  take(v.top_p, p.top_p);
  take(v.min_p, p.min_p);
  take(v.top_k, p.top_k);
  take(v.min_tokens_to_keep, p.min_tokens_to_keep);
  take(v.xtc_probability, p.xtc_probability);
  take(v.xtc_threshold, p.xtc_threshold);
  take(v.repetition_penalty, p.repetition_penalty);
  take(v.presence_penalty, p.presence_penalty);
  take(v.frequency_penalty, p.frequency_penalty);
  take(v.repetition_context_size, p.repetition_context_size);
  take(v.presence_context_size, p.presence_context_size);
  take(v.frequency_context_size, p.frequency_context_size);
  take(v.min_tokens, p.min_tokens);
  if (!v.penalty_scope.empty())
    p.repetition_scope = p.presence_scope = p.frequency_scope =
        v.penalty_scope == "all" ? PenaltyScope::all : PenaltyScope::generated;
  if (v.sampler_order == "temperature_first") p.order = SamplerOrder::temperature_first;
  if (v.logprobs_mode == "raw") p.logprobs_mode = LogprobsMode::raw;
  for (const std::string& bias : v.logit_bias) p.logit_bias.push_back(bias_from(bias));
  p.seed = v.seed;
  p.ignore_eos = v.ignore_eos;
  p.logprobs = wants_logprobs();
  p.top_logprobs = v.top_logprobs;
  return p;
}

std::vector<std::string> GenerationFlags::of_drafts() const {
  std::vector<std::string> given;
  const auto named = [&](const char* name) { return is_named(option_named(name)); };
  if (values_.spec_rule != "auto" && named("spec-rule")) given.push_back("--spec-rule " + values_.spec_rule);
  if (values_.spec_fixed_depth && named("spec-fixed-depth")) given.emplace_back("--spec-fixed-depth");
  return given;
}

Request GenerationFlags::request(std::vector<std::int32_t> ids, const ModelFacts& facts) const {
  const Values& v = values_;
  if (const std::vector<std::string> idle = of_drafts(); !idle.empty() && facts.draft_tokens == 0)
    throw Error(ErrorKind::usage, fmt::format("{} is given, and the model was loaded without drafts", idle.front()),
                "start anew without --num-draft-tokens 0 and --text-drafts off");
  Request request;
  const auto free_context = facts.context_tokens - static_cast<std::int64_t>(ids.size());
  // A prompt that leaves no room asks for one token all the same: the refusal has the numbers.
  request.max_tokens = v.max_tokens ? *v.max_tokens : std::clamp<std::int64_t>(free_context, 1, default_max_tokens_);
  request.ids = std::move(ids);
  request.sampling = sampling(facts);
  request.stop = v.stop;
  request.include_stop = v.include_stop;
  request.spec_rule = rule_from(v.spec_rule);
  request.draft_depths = v.spec_fixed_depth ? DraftDepths::fixed : DraftDepths::measured;
  if (!v.stop_token_ids.empty()) request.stop_token_ids = ids_from_list(v.stop_token_ids, "--stop-token-ids");
  return request;
}

}  // namespace outrider
