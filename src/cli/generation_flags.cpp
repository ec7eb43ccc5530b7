#include "cli/generation_flags.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "cli/nearest_name.h"
#include "cli/option_layers.h"
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
    throw Error(ErrorKind::usage, fmt::format("--logit-bias is \"{}\" (accepted: ID=NUMBER or ID=false)", text));
  return {id, bias};
}

template <class T, class U>
void take(const std::optional<U>& given, T& value) {
  if (given) value = static_cast<T>(*given);
}

}  // namespace

void GenerationFlags::define(CLI::App& verb) {
  verb_ = &verb;
  verb.add_option("--max-tokens,-m", max_tokens_,
                  fmt::format("most tokens of an answer ({}, cut to the free context)", default_max_tokens_));
  verb.add_option("--temp,--temperature", temperature_, "0 to 5; 0 takes the likeliest token (the model's, else 0)");
  verb.add_option("--top-p", top_p_, "keep the likeliest tokens up to this probability mass (1)");
  verb.add_option("--min-p", min_p_, "drop tokens less likely than this share of the likeliest (0)");
  verb.add_option("--top-k", top_k_, "keep this many likeliest tokens; 0 or -1: all (0)");
  verb.add_option("--min-tokens-to-keep", min_tokens_to_keep_, "tokens min-p always keeps (1)");
  verb.add_option("--xtc-probability", xtc_probability_,
                  "chance to drop the likeliest tokens but the last above the threshold (0)");
  verb.add_option("--xtc-threshold", xtc_threshold_, "0 to 0.5 (0.1)");
  verb.add_option("--seed", seed_, "the same seed gives the same answer (random)");
  verb.add_option("--repetition-penalty", repetition_penalty_,
                  "divides positive and multiplies negative logits of seen tokens (off)");
  verb.add_option("--repetition-context-size", repetition_context_size_, "last tokens it looks at; 0: all (20)");
  verb.add_option("--presence-penalty", presence_penalty_, "taken off the logits of seen tokens (0)");
  verb.add_option("--presence-context-size", presence_context_size_, "last tokens it looks at; 0: all (0)");
  verb.add_option("--frequency-penalty", frequency_penalty_, "taken off once per time a token was seen (0)");
  verb.add_option("--frequency-context-size", frequency_context_size_, "last tokens it looks at; 0: all (0)");
  verb.add_option("--penalty-scope", penalty_scope_, "all or generated (repetition: all, the others: generated)")
      ->check(CLI::IsMember({"all", "generated"}));
  verb.add_option("--logit-bias", logit_bias_, "ID=NUMBER or ID=false (never), repeatable")->expected(1)->take_all();
  verb.add_option("--sampler-order", sampler_order_, "mlx or temperature_first (mlx)")
      ->check(CLI::IsMember({"mlx", "temperature_first"}));
  verb.add_option("--sampling-defaults", sampling_defaults_, "model (its generation_config.json) or mlx (greedy)")
      ->check(CLI::IsMember({"model", "mlx"}));
  verb.add_option("--stop", stop_, "text that ends the answer, repeatable")->expected(1)->take_all();
  verb.add_option("--stop-token-ids", stop_token_ids_, "further end tokens, comma-separated");
  verb.add_flag("--include-stop-str-in-output", include_stop_, "keep the stop text");
  verb.add_option("--min-tokens", min_tokens_, "no end before so many tokens (0)");
  verb.add_flag("--ignore-eos", ignore_eos_, "end tokens are never chosen");
  verb.add_flag("--logprobs", logprobs_, "log-probabilities in the JSON");
  verb.add_option("--top-logprobs", top_logprobs_, "the likeliest 0 to 20 tokens of each position too (0)");
  verb.add_option("--logprobs-mode", logprobs_mode_, "processed or raw (processed)")
      ->check(CLI::IsMember({"processed", "raw"}));
}

void GenerationFlags::set(const std::string& name, const std::string& value) {
  std::string flag = "--" + name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  const std::vector<std::string> known = long_flags(*verb_);
  CLI::Option* option =
      std::find(known.begin(), known.end(), flag) == known.end() ? nullptr : verb_->get_option_no_throw(flag);
  if (option == nullptr || flag == "--help") {
    const std::string nearest = nearest_name(flag, known);
    throw Error(
        ErrorKind::usage, fmt::format("there is no setting {}", name),
        nearest.empty() ? "settings are the flags of chat" : fmt::format("did you mean {}?", nearest.substr(2)));
  }
  const std::vector<std::string> before = option->results();
  const auto assign = [&](const std::vector<std::string>& values) {
    option->clear();
    for (const std::string& each : values) option->add_result(each);
    option->run_callback();
  };
  try {
    assign({value});
  } catch (const CLI::Error& fault) {
    if (!before.empty()) assign(before);
    throw Error(ErrorKind::usage, fault.what());
  }
}

SamplingParams GenerationFlags::sampling(const ModelFacts& facts) const {
  SamplingParams p = sampling_defaults_ == "model" ? facts.default_sampling : SamplingParams{};
  take(temperature_, p.temperature);
  take(top_p_, p.top_p);
  take(min_p_, p.min_p);
  take(top_k_, p.top_k);
  take(min_tokens_to_keep_, p.min_tokens_to_keep);
  take(xtc_probability_, p.xtc_probability);
  take(xtc_threshold_, p.xtc_threshold);
  take(repetition_penalty_, p.repetition_penalty);
  take(presence_penalty_, p.presence_penalty);
  take(frequency_penalty_, p.frequency_penalty);
  take(repetition_context_size_, p.repetition_context_size);
  take(presence_context_size_, p.presence_context_size);
  take(frequency_context_size_, p.frequency_context_size);
  take(min_tokens_, p.min_tokens);
  if (!penalty_scope_.empty())
    p.repetition_scope = p.presence_scope = p.frequency_scope =
        penalty_scope_ == "all" ? PenaltyScope::all : PenaltyScope::generated;
  if (sampler_order_ == "temperature_first") p.order = SamplerOrder::temperature_first;
  if (logprobs_mode_ == "raw") p.logprobs_mode = LogprobsMode::raw;
  for (const std::string& bias : logit_bias_) p.logit_bias.push_back(bias_from(bias));
  p.seed = seed_;
  p.ignore_eos = ignore_eos_;
  p.logprobs = wants_logprobs();
  p.top_logprobs = top_logprobs_;
  return p;
}

Request GenerationFlags::request(std::vector<std::int32_t> ids, const ModelFacts& facts) const {
  Request request;
  const auto free_context = facts.context_tokens - static_cast<std::int64_t>(ids.size());
  // A prompt that leaves no room asks for one token all the same: the refusal has the numbers.
  request.max_tokens = max_tokens_ ? *max_tokens_ : std::clamp<std::int64_t>(free_context, 1, default_max_tokens_);
  request.ids = std::move(ids);
  request.sampling = sampling(facts);
  request.stop = stop_;
  request.include_stop = include_stop_;
  if (!stop_token_ids_.empty()) request.stop_token_ids = ids_from_list(stop_token_ids_, "--stop-token-ids");
  return request;
}

}  // namespace outrider
