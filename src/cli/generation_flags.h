// The flags of an answer (serving.md 2, 4.4), in mlx_lm's spelling, shared by run and chat.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace outrider {

class GenerationFlags {
 public:
  // default_max_tokens: cut to the free context when the flag is not given.
  explicit GenerationFlags(std::int64_t default_max_tokens) : default_max_tokens_(default_max_tokens) {}
  void define(CLI::App& verb);

  // A request for `ids`: the flags over the model's defaults (or mlx_lm's with --sampling-defaults mlx). Error (usage),
  // also where flags of drafts are set and nothing drafts.
  Request request(std::vector<std::int32_t> ids, const ModelFacts& facts) const;
  // "temp=0.7" of chat's /set: the same names, ranges and messages as the flags. Error (usage), or whatever `check`
  // throws of the new values: then the setting is what it was.
  void set(const std::string& name, const std::string& value, const std::function<void()>& check);
  // The flags that say how drafts are made, as the user named them: "--spec-rule ratio".
  std::vector<std::string> of_drafts() const;
  bool wants_logprobs() const { return values_.logprobs || values_.top_logprobs > 0; }

 private:
  struct Values {
    std::optional<std::int64_t> max_tokens, top_k, min_tokens_to_keep, min_tokens, seed;
    std::optional<double> temperature, top_p, min_p, xtc_probability, xtc_threshold;
    std::optional<double> repetition_penalty, presence_penalty, frequency_penalty;
    std::optional<std::int64_t> repetition_context_size, presence_context_size, frequency_context_size;
    std::string penalty_scope, sampler_order = "mlx", sampling_defaults = "model", logprobs_mode = "processed",
                               spec_rule = "auto";
    std::vector<std::string> logit_bias, stop;
    std::string stop_token_ids;
    bool ignore_eos = false, include_stop = false, logprobs = false, spec_fixed_depth = false;
    int top_logprobs = 0;
  };
  SamplingParams sampling(const ModelFacts& facts) const;
  CLI::Option& option_named(const std::string& name) const;

  std::int64_t default_max_tokens_;
  Values values_;
  std::vector<CLI::Option*> options_;
};

}  // namespace outrider
