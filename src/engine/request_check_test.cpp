#include "engine/request_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace outrider {
namespace {

constexpr RequestBounds kBounds = {.vocab = 100,
                                   .tokenizer_size = 90,
                                   .context_tokens = 1000,
                                   .kv_blocks = 10,
                                   .kv_bytes_per_block = 4096,
                                   .has_text = true};

Request good() {
  Request request;
  request.ids = {1, 2, 3};
  request.max_tokens = 5;
  return request;
}

TEST(RequestCheck, PassesAPlainRequest) { EXPECT_FALSE(check_request(good(), kBounds)); }

// Every field just outside its range is refused by name; just inside it passes.
TEST(RequestCheck, RefusesEveryFieldOutsideItsRangeByName) {
  struct Case {
    const char* field;
    std::function<void(Request&, double)> set;
    double bad, fine;
  };
  const std::vector<Case> cases = {
      {"temperature", [](Request& r, double v) { r.sampling.temperature = v; }, 5.1, 5},
      {"temperature", [](Request& r, double v) { r.sampling.temperature = v; }, NAN, 0},
      {"top_p", [](Request& r, double v) { r.sampling.top_p = v; }, 1.01, 0},
      {"min_p", [](Request& r, double v) { r.sampling.min_p = v; }, -0.1, 1},
      {"top_k", [](Request& r, double v) { r.sampling.top_k = static_cast<int>(v); }, -2, -1},
      {"min_tokens_to_keep", [](Request& r, double v) { r.sampling.min_tokens_to_keep = static_cast<int>(v); }, 0, 1},
      {"xtc_probability", [](Request& r, double v) { r.sampling.xtc_probability = v; }, 2, 1},
      {"xtc_threshold", [](Request& r, double v) { r.sampling.xtc_threshold = v; }, 0.6, 0.5},
      {"repetition_penalty", [](Request& r, double v) { r.sampling.repetition_penalty = v; }, -1, 10},
      {"presence_penalty", [](Request& r, double v) { r.sampling.presence_penalty = v; }, 11, -10},
      {"frequency_penalty", [](Request& r, double v) { r.sampling.frequency_penalty = v; }, -11, 10},
      {"repetition_context_size",
       [](Request& r, double v) { r.sampling.repetition_context_size = static_cast<int>(v); }, -1, 0},
      {"presence_context_size", [](Request& r, double v) { r.sampling.presence_context_size = static_cast<int>(v); },
       -1, 0},
      {"frequency_context_size", [](Request& r, double v) { r.sampling.frequency_context_size = static_cast<int>(v); },
       -1, 0},
      {"min_tokens", [](Request& r, double v) { r.sampling.min_tokens = static_cast<int>(v); }, -1, 0},
      {"top_logprobs", [](Request& r, double v) { r.sampling.top_logprobs = static_cast<int>(v); }, 21, 20},
      {"max_tokens", [](Request& r, double v) { r.max_tokens = static_cast<int>(v); }, -1, 0},
      {"prompt", [](Request& r, double v) { r.ids[1] = static_cast<int>(v); }, 90, 89},
      {"prompt", [](Request& r, double v) { r.ids[1] = static_cast<int>(v); }, -1, 0},
      {"logit_bias", [](Request& r, double v) { r.sampling.logit_bias = {{static_cast<int>(v), 1.0f}}; }, 90, 89},
      {"logit_bias", [](Request& r, double v) { r.sampling.logit_bias = {{3, static_cast<float>(v)}}; }, 101, 100},
      {"logit_bias", [](Request& r, double v) { r.sampling.logit_bias = {{3, static_cast<float>(v)}}; },
       std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()},
      {"stop_token_ids", [](Request& r, double v) { r.stop_token_ids = {static_cast<int>(v)}; }, 90, 89},
      {"stop", [](Request& r, double v) { r.stop.assign(static_cast<std::size_t>(v), "x"); }, 17, 16},
      {"stop", [](Request& r, double v) { r.stop = {std::string(static_cast<std::size_t>(v), 'x')}; }, 513, 512},
      {"stop", [](Request& r, double v) { r.stop = {std::string(static_cast<std::size_t>(v), 'x')}; }, 0, 1},
  };
  for (const Case& c : cases) {
    Request request = good();
    c.set(request, c.bad);
    const auto refusal = check_request(request, kBounds);
    ASSERT_TRUE(refusal) << c.field << " " << c.bad;
    EXPECT_EQ(refusal->field, c.field) << refusal->message;
    EXPECT_EQ(refusal->http_status, 400);
    c.set(request, c.fine);
    EXPECT_FALSE(check_request(request, kBounds)) << c.field << " " << c.fine;
  }
}

// The head may have more rows than the tokenizer has ids (models.md 1.3); such ids may be scored, not answered.
TEST(RequestCheck, OnlyScoredPromptsMayHoldIdsBeyondTheTokenizer) {
  Request request = good();
  request.ids[1] = 95;
  EXPECT_THAT(check_request(request, kBounds)->message, testing::HasSubstr("token id 95 at position 1"));
  request.want = Want::prompt_logprobs;
  EXPECT_FALSE(check_request(request, kBounds));
  request.ids[1] = 100;
  EXPECT_EQ(check_request(request, kBounds)->field, "prompt");
}

TEST(RequestCheck, RefusesAnEmptyPromptAndStopsWithoutATokenizer) {
  Request request = good();
  request.ids.clear();
  EXPECT_EQ(check_request(request, kBounds)->code, "missing_field");
  request = good();
  request.stop = {"x"};
  RequestBounds no_text = kBounds;
  no_text.has_text = false;
  EXPECT_EQ(check_request(request, no_text)->field, "stop");
}

TEST(RequestCheck, RefusesARuleThatDoesNotFitTheTemperature) {
  Request request = good();
  for (const double temperature : {0.0, 0.7}) {
    request.sampling.temperature = temperature;
    request.spec_rule = SpecRule::automatic;
    EXPECT_FALSE(check_request(request, kBounds));
    for (const SpecRule rule : {SpecRule::greedy, SpecRule::coupled, SpecRule::ratio}) {
      request.spec_rule = rule;
      const auto refusal = check_request(request, kBounds);
      const bool fits = (rule == SpecRule::greedy) == (temperature == 0);
      ASSERT_EQ(!refusal, fits) << static_cast<int>(rule) << " at " << temperature;
      if (fits) continue;
      EXPECT_EQ(refusal->code, "conflicting_parameters");
      EXPECT_EQ(refusal->field, "spec_rule");
      EXPECT_EQ(refusal->http_status, 400);
    }
  }
  request.sampling.temperature = 0;
  EXPECT_EQ(check_request(request, kBounds)->message,
            "spec_rule is ratio and temperature 0: ratio needs a temperature above 0, auto goes with any");
}

TEST(RequestCheck, NamesTheLargestMaxTokensThatPasses) {
  Request request = good();
  request.max_tokens = 998;
  EXPECT_THAT(check_request(request, kBounds)->message,
              testing::HasSubstr("the largest max_tokens that passes is 636"));
  EXPECT_EQ(check_request(request, kBounds)->code, "context_length_exceeded");
  request.max_tokens = 700;
  EXPECT_EQ(check_request(request, kBounds)->code, "memory_contract");
  EXPECT_THAT(check_request(request, kBounds)->message, testing::HasSubstr("40960 are planned"));
  request.max_tokens = 636;
  EXPECT_FALSE(check_request(request, kBounds));
  request.ids.assign(1001, 1);
  request.max_tokens = 0;
  EXPECT_THAT(check_request(request, kBounds)->message, testing::HasSubstr("the prompt alone is too long"));
}

}  // namespace
}  // namespace outrider
