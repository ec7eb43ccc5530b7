// Draft vocabularies from files to answers: what is planned is taken, and the text is that without drafts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "base/test_directory.h"
#include "engine/draft_scoring.h"
#include "engine/scripted_model.h"
#include "speculate/ngram_drafter.h"
#include "weights/draft_ranking.h"

namespace outrider {
namespace {

LoadOptions options_for(const std::string& model) {
  set_log(LogLevel::off, LogFormat::text);
  LoadOptions options;
  options.model = std::string(OUTRIDER_SOURCE_DIR) + "/" + model;
  options.threads = 2;
  options.context_tokens = 250;  // 4 blocks, which the longest answers below fill
  options.max_rows = options.planned_rows = 2;
  options.text_drafts = TextDrafts::off;
  return options;
}
LoadOptions tiny_options() { return options_for("oracles/goldens/qwen3_5/mtp_pre_norm"); }  // 131 tokens, no text
LoadOptions small_options() { return options_for("models/tiny-qwen3_5-mtp"); }              // 8192 tokens

std::vector<Answer> answers(Engine& engine, const std::vector<Request>& requests) {
  std::map<RequestId, Answer> all;
  std::vector<RequestId> ids;
  for (const Request& request : requests) ids.push_back(engine.submit(request).value());
  while (engine.step([&](const Event& event) { collect(all, event); })) {
  }
  std::vector<Answer> out;
  for (const RequestId id : ids) out.push_back(all[id]);
  return out;
}

std::vector<Request> some_requests() {
  std::vector<Request> requests(2);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].ids = {1, 2, 3, static_cast<std::int32_t>(40 + i)};
    requests[i].max_tokens = 40;
    requests[i].sampling.ignore_eos = true;
    requests[i].sampling.temperature = i == 0 ? 0 : 0.6;
    requests[i].sampling.seed = 9;
    requests[i].draft_depths = DraftDepths::fixed;
  }
  return requests;
}

TEST(DraftVocabularyEngine, ChangesNoTextOfAModelThatDraftsWell) {
  const auto texts = [](std::int64_t draft_tokens, std::int64_t vocabulary, std::int64_t& accepted) {
    LoadOptions options = small_options();
    options.draft_tokens = draft_tokens;
    options.draft_vocabulary_tokens = vocabulary;
    const auto engine = Engine::load(options);
    std::vector<Request> requests = some_requests();
    for (Request& request : requests) request.ids = engine->encode("To install the package, run the following");
    std::vector<std::vector<std::int32_t>> out;
    accepted = 0;
    for (const Answer& answer : answers(*engine, requests)) {
      out.push_back(answer.ids);
      accepted += answer.last.timings.draft_n_accepted;
    }
    return out;
  };
  std::int64_t none = 0, all = 0, some = 0;
  const auto expected = texts(0, 0, none);
  EXPECT_EQ(texts(3, 0, all), expected);
  EXPECT_EQ(texts(3, 3000, some), expected);
  EXPECT_EQ(none, 0);
  EXPECT_GT(all, 20);
  EXPECT_GT(some, 10);
}

TEST(DraftVocabularyEngine, TakesWhatWasPlanned) {
  for (const std::int64_t vocabulary : {0, 50}) {
    LoadOptions options = tiny_options();
    options.draft_vocabulary_tokens = vocabulary;
    reset_memory_peaks();
    const std::size_t weights = memory_use(MemoryPart::weights).now_bytes;
    const std::size_t scratch = memory_use(MemoryPart::scratch).now_bytes;
    const auto engine = Engine::load(options);
    std::vector<Request> requests = some_requests();
    requests[0].sampling.temperature = 1;
    for (Request& request : requests) {
      request.spec_rule = SpecRule::ratio;
      request.ids.assign(205, 5);
    }
    for (const Answer& answer : answers(*engine, requests)) EXPECT_GT(answer.last.timings.draft_n, 20);
    const MemoryPlan& plan = engine->plan();
    EXPECT_EQ(plan.parts, plan_memory(options).parts);
    EXPECT_EQ(memory_use(MemoryPart::weights).now_bytes - weights, plan.parts.at(MemoryPart::weights));
    EXPECT_LE(memory_use(MemoryPart::scratch).peak_bytes - scratch, plan.parts.at(MemoryPart::scratch));
    // A row under `ratio` keeps the distributions of its drafts; its window's logits and its mailbox lie elsewhere.
    constexpr std::size_t kRow = 4 * 131 * 4 + (256 << 10);
    EXPECT_EQ(memory_use(MemoryPart::kv).peak_bytes + 2 * kRow, plan.parts.at(MemoryPart::kv));
  }
}

TEST(DraftVocabularyEngine, IsTheRankedOneByDefault) {
  const TestDirectory directory;
  LoadOptions options = tiny_options();
  for (const auto& entry : std::filesystem::directory_iterator(options.model))
    std::filesystem::copy(entry.path(), directory.path() / entry.path().filename());
  options.model = directory.path().string();
  const auto weights = [&] { return plan_memory(options).parts.at(MemoryPart::weights); };
  const std::uint64_t without = weights();
  std::vector<std::int32_t> ids(64);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(130 - i);
  directory.write(kDraftRankingFile, draft_ranking_text(ids));
  const std::uint64_t ranked = weights();
  EXPECT_GT(ranked, without);
  options.draft_vocabulary_tokens = 64;
  EXPECT_EQ(weights(), ranked);
  options.draft_vocabulary_tokens = 0;
  EXPECT_EQ(weights(), without);
  options.draft_vocabulary_tokens.reset();
  options.draft_tokens = 0;
  EXPECT_EQ(weights(), without) << "without drafts";
  directory.write(kDraftRankingFile, R"({"ids": [131]})");
  EXPECT_EQ(weights(), without) << "not looked at";
  options.draft_tokens = 3;
  EXPECT_THROW(weights(), Error);
}

TEST(DraftVocabularyEngine, RefusesOneThatCannotHoldWhatItMust) {
  LoadOptions options = small_options();
  options.draft_vocabulary_tokens = 100;
  try {
    Engine::load(options);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), testing::HasSubstr("a draft vocabulary of 100 tokens, "));
  }
  options.draft_vocabulary_tokens = -1;
  EXPECT_THROW(plan_memory(options), Error);
}

TEST(DraftScoringEngine, RefusesWhatDoesNotFitBesideThePlan) {
  LoadOptions options = tiny_options();
  options.prefix_cache_bytes = 0;  // would shrink with the budget
  options.memory_budget_bytes = plan_memory(options).planned_bytes;
  const std::vector<std::int32_t> ids(200, 7);
  const auto score = [&] {
    const auto engine = Engine::load(options);
    const std::vector<float> hiddens(ids.size() * static_cast<std::size_t>(engine->facts().width), 0.5F);
    std::int64_t rows = 0;
    const std::size_t width = static_cast<std::size_t>(engine->facts().width);
    engine->score_drafts(ids, hiddens, [&](const Engine::DraftRowsEvent& event) {
      rows += static_cast<std::int64_t>(event.hidden.size() / width);
    });
    return rows;
  };
  try {
    score();
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::memory);
    EXPECT_THAT(error.what(), testing::HasSubstr("the MTP head's rows of 200 tokens take "));
  }
  options.memory_budget_bytes += 8 << 20;
  EXPECT_EQ(score(), 199);
}

}  // namespace
}  // namespace outrider
