// The flags of an answer (serving.md 2, 4.4), in mlx_lm's spelling, shared by run and chat.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
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

  // A request for `ids`: the flags over the model's defaults (or mlx_lm's with --sampling-defaults mlx). Error (usage).
  Request request(std::vector<std::int32_t> ids, const ModelFacts& facts) const;
  // "temp=0.7" of chat's /set: the same names, ranges and messages as the flags. Error (usage).
  void set(const std::string& name, const std::string& value);
  bool wants_logprobs() const { return logprobs_ || top_logprobs_ > 0; }

 private:
  SamplingParams sampling(const ModelFacts& facts) const;

  std::int64_t default_max_tokens_;
  std::optional<std::int64_t> max_tokens_, top_k_, min_tokens_to_keep_, min_tokens_, seed_;
  std::optional<double> temperature_, top_p_, min_p_, xtc_probability_, xtc_threshold_;
  std::optional<double> repetition_penalty_, presence_penalty_, frequency_penalty_;
  std::optional<std::int64_t> repetition_context_size_, presence_context_size_, frequency_context_size_;
  std::string penalty_scope_, sampler_order_ = "mlx", sampling_defaults_ = "model", logprobs_mode_ = "processed";
  std::vector<std::string> logit_bias_, stop_;
  std::string stop_token_ids_;
  bool ignore_eos_ = false, include_stop_ = false, logprobs_ = false;
  int top_logprobs_ = 0;
  CLI::App* verb_ = nullptr;
};

}  // namespace outrider
