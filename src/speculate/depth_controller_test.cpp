// The depth controller in simulated worlds: what a round costs and what is accepted is the world's, all that the
// controller knows is what it has measured.
#include "speculate/depth_controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>

namespace outrider {
namespace {

using Controller = DepthController;

struct World {
  std::int64_t rows = 1, depth = 4, arms = 1;
  std::function<double(std::int64_t tokens)> step_ms;
  std::function<double(std::int64_t arm, std::int64_t rows)> pass_ms;
  // Chance that the proposal at `place` is right, given those before.
  std::function<double(std::int64_t round, std::int64_t row, std::int64_t arm, std::int64_t place)> chance;
  double jitter = 0;    // times vary by up to this share
  double first_ms = 0;  // what the first step takes longer: it touches its memory
};

double ideal_chance(std::int64_t place) {
  constexpr double kChances[] = {0.85, 0.67, 0.52, 0.45};  // issue 5
  return kChances[place];
}

class Simulation {
 public:
  explicit Simulation(World world)
      : world_(std::move(world)),
        controller({world_.depth, world_.rows, world_.arms}),
        acceptance_(static_cast<std::size_t>(world_.rows)) {}

  // Runs rounds; returns tokens per ms relative to plain steps, over these rounds.
  double run(std::int64_t rounds) {
    double ms = 0, plain_ms = 0;
    for (std::int64_t i = 0; i < rounds; ++i) {
      std::vector<Controller::Row> rows;
      for (RowAcceptance& row : acceptance_) rows.push_back({&row, world_.depth});
      depths.assign(rows.size(), 0);
      arm = controller.plan(rows, depths, only_arm);
      play(ms, plain_ms);
      worst = std::min(worst, plain_total_ / total_);
      ++round_;
    }
    return plain_ms / ms;
  }

  World world_;
  Controller controller;
  std::vector<std::int64_t> depths;
  std::int64_t arm = 0;
  std::optional<std::int64_t> only_arm;
  double worst = 1;  // cumulative ratio after any round

 private:
  void play(double& ms, double& plain_ms) {
    std::vector<Controller::RowOutcome> outcomes;
    std::int64_t tokens = 0, emitted = 0;
    Controller::Times times;
    for (std::size_t r = 0; r < depths.size(); ++r) {
      std::int64_t accepted = 0;
      while (accepted < depths[r] &&
             uniform_(random_) < world_.chance(round_, static_cast<std::int64_t>(r), arm, accepted))
        ++accepted;
      outcomes.push_back({&acceptance_[r], depths[r], accepted});
      tokens += 1 + depths[r];
      emitted += 1 + accepted;
    }
    for (std::int64_t place = 0; place < world_.depth; ++place)
      if (const auto in_pass = std::count_if(depths.begin(), depths.end(), [&](auto d) { return d > place; });
          in_pass > 0)
        times.draft_ms += world_.pass_ms(arm, in_pass) * varied();
    times.verify_ms = world_.step_ms(tokens) * varied() + (total_ == 0 ? world_.first_ms : 0);
    controller.observe(arm, outcomes, times, Controller::Prompts::none);
    const double spent = times.draft_ms + times.verify_ms;
    const double plain = static_cast<double>(emitted) / static_cast<double>(world_.rows) * world_.step_ms(world_.rows);
    ms += spent;
    plain_ms += plain;
    total_ += spent;
    plain_total_ += plain;
  }
  double varied() { return 1 + world_.jitter * (2 * uniform_(random_) - 1); }

  std::vector<RowAcceptance> acceptance_;
  std::mt19937 random_{7};
  std::uniform_real_distribution<double> uniform_{0, 1};
  std::int64_t round_ = 0;
  double total_ = 0, plain_total_ = 0;
};

World memory_bound(double draft_share, std::function<double(std::int64_t)> chance) {
  World world;
  world.step_ms = [](std::int64_t tokens) { return 20 + 0.8 * static_cast<double>(tokens); };
  world.pass_ms = [draft_share](std::int64_t, std::int64_t) { return 20 * draft_share; };
  world.chance = [chance](std::int64_t, std::int64_t, std::int64_t, std::int64_t place) { return chance(place); };
  return world;
}

// Tokens per ms of one row at a fixed depth, relative to plain steps.
double fixed_depth(const World& world, std::int64_t depth) {
  double tokens = 1, chance = 1, ms = world.step_ms(1 + depth);
  for (std::int64_t place = 0; place < depth; ++place) {
    chance *= world.chance(0, 0, 0, place);
    tokens += chance;
    ms += world.pass_ms(0, 1);
  }
  return tokens * world.step_ms(1) / ms;
}

TEST(DepthController, FindsTheDepthThatPaysMost) {
  for (const double draft_share : {0.03, 0.1, 0.3}) {
    World world = memory_bound(draft_share, ideal_chance);
    double best = 1;
    for (std::int64_t depth = 1; depth <= 4; ++depth) best = std::max(best, fixed_depth(world, depth));
    world.jitter = 0.1;
    Simulation simulation(world);
    simulation.run(300);
    EXPECT_GT(simulation.run(2000), 0.95 * best) << draft_share;
    EXPECT_GT(best, 1.3);
    EXPECT_TRUE(simulation.controller.counters().pays);
  }
}

TEST(DepthController, SwitchesOffWhereItLosesAndNeverFallsBelow98Percent) {
  const std::vector<World> worlds = {
      memory_bound(0.05, [](std::int64_t) { return 0.02; }),  // drafts are wrong
      memory_bound(1.0, ideal_chance),                        // drafts cost as much as steps
      memory_bound(0.5, [](std::int64_t) { return 0.3; }),
  };
  for (World world : worlds) {
    world.jitter = 0.1;
    Simulation simulation(world);
    simulation.run(300);
    EXPECT_GT(simulation.run(4000), 0.98);
    EXPECT_FALSE(simulation.controller.counters().pays);
    const auto& counters = simulation.controller.counters();
    EXPECT_LT(counters.rounds_with_drafts * 10, counters.rounds);
    EXPECT_GT(counters.trials, 3);
  }
}

TEST(DepthController, AcceptanceThatTurnsAgainstItCostsNoMoreThanTheAllowance) {
  for (const std::int64_t period : {40, 200, 1000}) {
    World world = memory_bound(0.3, ideal_chance);
    // As bad as it can be: whenever the past speaks for drafts, they are wrong.
    world.chance = [period](std::int64_t round, std::int64_t, std::int64_t, std::int64_t) {
      return round / period % 2 == 0 ? 0.9 : 0.0;
    };
    Simulation simulation(world);
    simulation.run(400);
    EXPECT_GT(simulation.run(8000), 0.98) << period;
    EXPECT_GT(simulation.worst, 0.9) << period;  // also after the first rounds
  }
}

TEST(DepthController, CostsThatJumpAreLearned) {
  World world = memory_bound(0.05, ideal_chance);
  auto slow = std::make_shared<bool>(false);
  world.pass_ms = [slow](std::int64_t, std::int64_t) { return *slow ? 60.0 : 1.0; };
  Simulation simulation(world);
  simulation.run(500);
  EXPECT_TRUE(simulation.controller.counters().pays);
  *slow = true;
  simulation.run(1000);
  EXPECT_FALSE(simulation.controller.counters().pays);
  EXPECT_GT(simulation.run(4000), 0.98);
  *slow = false;  // and it comes back
  simulation.run(4000);
  EXPECT_GT(simulation.run(500), 1.3);
}

TEST(DepthController, ComesBackWhenAcceptanceDoes) {
  World world = memory_bound(0.05, ideal_chance);
  world.chance = [](std::int64_t round, std::int64_t, std::int64_t, std::int64_t place) {
    return round < 2000 ? 0.01 : ideal_chance(place);
  };
  Simulation simulation(world);
  simulation.run(2000);
  EXPECT_FALSE(simulation.controller.counters().pays);
  simulation.run(1500);
  EXPECT_GT(simulation.run(500), 1.3);
}

// As measured of 8 rows of a 0.8B hybrid on two AVX2 cores, where drafts lose 6 % of the time.
TEST(DepthController, AFirstStepThatTouchesItsMemoryDoesNotMakeDraftsPay) {
  World world = memory_bound(0, ideal_chance);
  world.rows = 8;
  world.step_ms = [](std::int64_t tokens) {
    return 90 + 12 * static_cast<double>(std::max<std::int64_t>(tokens - 8, 0));
  };
  world.pass_ms = [](std::int64_t, std::int64_t) { return 4; };
  world.first_ms = 45;
  Simulation simulation(world);
  simulation.run(1);
  EXPECT_GT(simulation.run(200), 0.975);
}

TEST(DepthController, DepthsAreZeroWhereAStepIsBoundByArithmetic) {
  World world = memory_bound(0, ideal_chance);
  world.rows = 8;
  world.step_ms = [](std::int64_t tokens) { return std::max(20.0, 8.0 * static_cast<double>(tokens)); };
  world.pass_ms = [](std::int64_t, std::int64_t rows) { return 0.5 + 0.5 * static_cast<double>(rows); };
  world.jitter = 0.05;
  Simulation simulation(world);
  simulation.run(300);
  EXPECT_GT(simulation.run(3000), 0.98);
  EXPECT_FALSE(simulation.controller.counters().pays);
}

TEST(DepthController, RowsDraftAsDeepAsTheirOwnAcceptance) {
  World world = memory_bound(0.02, ideal_chance);
  world.rows = 4;
  world.step_ms = [](std::int64_t tokens) { return 20 + 2.0 * static_cast<double>(tokens); };
  world.chance = [](std::int64_t, std::int64_t row, std::int64_t, std::int64_t) { return row == 2 ? 0.95 : 0.02; };
  Simulation simulation(world);
  simulation.run(600);
  std::vector<std::int64_t> sum(4);
  for (int i = 0; i < 100; ++i) {
    simulation.run(1);
    for (std::size_t r = 0; r < 4; ++r) sum[r] += simulation.depths[r];
  }
  EXPECT_GT(sum[2], 300);
  for (const std::size_t r : {0u, 1u, 3u}) EXPECT_LT(sum[r], 40);
}

TEST(DepthController, TheArmWithTheLargerGainIsTaken) {
  for (const double few_chance : {0.8, 0.2}) {
    World world = memory_bound(0, ideal_chance);
    world.arms = 2;
    world.pass_ms = [](std::int64_t arm, std::int64_t) { return arm == 0 ? 7.0 : 1.0; };  // the full head; a subset
    world.chance = [few_chance](std::int64_t, std::int64_t, std::int64_t arm, std::int64_t) {
      return arm == 0 ? 0.85 : few_chance;
    };
    Simulation simulation(world);
    simulation.run(1000);
    int subset = 0, drafted = 0;
    for (int i = 0; i < 200; ++i) {
      simulation.run(1);
      if (simulation.depths[0] == 0) continue;
      ++drafted;
      subset += static_cast<int>(simulation.arm);
    }
    EXPECT_GT(drafted, 150);
    if (few_chance > 0.5)
      EXPECT_GT(subset, drafted * 9 / 10);
    else
      EXPECT_LT(subset, drafted / 10);
  }
}

// Whichever arm would be better: the other is neither taken nor tried.
TEST(DepthController, KeepsToTheArmItMayUse) {
  for (const std::int64_t only : {0, 1}) {
    World world = memory_bound(0, ideal_chance);
    world.arms = 2;
    world.pass_ms = [only](std::int64_t arm, std::int64_t) { return arm == only ? 5.0 : 1.0; };
    world.chance = [](std::int64_t round, std::int64_t, std::int64_t, std::int64_t) { return round < 300 ? 0.9 : 0.1; };
    Simulation simulation(world);
    simulation.only_arm = only;
    int drafted = 0;
    for (int i = 0; i < 1200; ++i) {
      simulation.run(1);
      if (simulation.depths[0] == 0) continue;
      ++drafted;
      EXPECT_EQ(simulation.arm, only);
    }
    EXPECT_GT(drafted, 200);
    EXPECT_GT(simulation.controller.counters().trials, 2);
  }
}

TEST(DepthController, ProposalsOfTheTextCostNoPass) {
  // The head costs a step a pass: only the row whose text repeats drafts.
  Controller controller({4, 2, 1});
  std::vector<RowAcceptance> acceptance(2);
  std::vector<std::int64_t> sum(2);
  for (int round = 0; round < 600; ++round) {
    const Controller::Row rows[] = {{&acceptance[0], 4, DraftSource::head}, {&acceptance[1], 4, DraftSource::text}};
    std::vector<std::int64_t> depths(2);
    const std::int64_t arm = controller.plan(rows, depths);
    const Controller::RowOutcome outcomes[] = {{&acceptance[0], depths[0], depths[0], DraftSource::head},
                                               {&acceptance[1], depths[1], depths[1], DraftSource::text}};
    const double window = static_cast<double>(2 + depths[0] + depths[1]);
    controller.observe(arm, outcomes, {25.0 * static_cast<double>(depths[0]), 20 + window}, Controller::Prompts::none);
    for (std::size_t r = 0; r < 2 && round >= 300; ++r) sum[r] += depths[r];
  }
  EXPECT_LT(sum[0], 30);
  EXPECT_GT(sum[1], 1100);
}

TEST(DepthController, TheTextIsLeftWhenTheHeadIsRightMoreOften) {
  const Controller controller({4, 1, 2});
  RowAcceptance row;
  EXPECT_EQ(controller.source_of(row), DraftSource::text);
  for (int i = 0; i < 20; ++i) row.text.note(4, 0);
  EXPECT_EQ(controller.source_of(row), DraftSource::head);
  for (int i = 0; i < 20; ++i) row.arms[0].note(1, 0);
  EXPECT_EQ(controller.source_of(row), DraftSource::head);  // the second arm is not known to be bad
  for (int i = 0; i < 200; ++i) row.text.note(4, 3);
  EXPECT_EQ(controller.source_of(row), DraftSource::text);
}

TEST(DepthController, NeverDraftsDeeperThanARowMay) {
  Controller controller({4, 3, 1});
  std::vector<RowAcceptance> acceptance(3);
  const std::vector<std::int64_t> limits = {0, 1, 9};
  for (int round = 0; round < 300; ++round) {
    std::vector<Controller::Row> rows;
    for (std::size_t r = 0; r < 3; ++r) rows.push_back({&acceptance[r], limits[r]});
    std::vector<std::int64_t> depths(3);
    const std::int64_t arm = controller.plan(rows, depths);
    std::vector<Controller::RowOutcome> outcomes;
    for (std::size_t r = 0; r < 3; ++r) {
      EXPECT_LE(depths[r], std::min<std::int64_t>(limits[r], 4));
      outcomes.push_back({&acceptance[r], depths[r], depths[r]});
    }
    controller.observe(arm, outcomes, {0.1, 20}, Controller::Prompts::none);
  }
  const auto& counters = controller.counters();
  EXPECT_GT(counters.drafted[3], 100);
  EXPECT_EQ(counters.accepted, counters.drafted);
  EXPECT_EQ(counters.emitted,
            3 * 300 + counters.drafted[0] + counters.drafted[1] + counters.drafted[2] + counters.drafted[3]);
  EXPECT_NEAR(counters.verify_ms, 300 * 20, 1e-6);
  EXPECT_EQ(controller.plan({}, {}), 0);
}

TEST(DepthController, StepsWithPromptsTeachNothingAboutCosts) {
  Controller controller({4, 1, 1});
  RowAcceptance acceptance;
  const Controller::RowOutcome plain{&acceptance, 0, 0};
  for (int i = 0; i < 100; ++i) controller.observe(0, {&plain, 1}, {0, 500}, Controller::Prompts::some);
  EXPECT_EQ(controller.balance_ms(), 0);
  controller.observe(0, {&plain, 1}, {0, 20}, Controller::Prompts::none);
  EXPECT_NEAR(controller.balance_ms(), Controller::first_balance(1) * 20 + Controller::kAllowance * 20, 1e-9);
}

TEST(DepthController, TheSameMeasurementsGiveTheSameDepths) {
  World world = memory_bound(0.1, ideal_chance);
  world.rows = 3;
  world.jitter = 0.3;
  Simulation a(world), b(world);
  for (int i = 0; i < 500; ++i) {
    a.run(1);
    b.run(1);
    ASSERT_EQ(a.depths, b.depths);
  }
}

TEST(CostTable, GivesWhatWasMeasuredAndReasonablySomethingBetween) {
  CostTable table(10);
  EXPECT_EQ(table.likely(3), 0);
  table.note(2, 10);
  table.note(6, 30);
  EXPECT_EQ(table.likely(2), 10);
  EXPECT_EQ(table.likely(4), 20);
  EXPECT_EQ(table.likely(1), 10);
  EXPECT_EQ(table.likely(9), 30);
  EXPECT_GE(table.at_most(9), 45);
  EXPECT_GE(table.at_most(4), 20);
  for (int i = 0; i < 100; ++i) table.note(2, 1000000);  // a mean follows, but not a single outlier
  CostTable calm(2);
  calm.note(1, 10);
  calm.note(1, 1e9);
  EXPECT_LT(calm.likely(1), 20);
  EXPECT_GT(table.likely(2), 1000);
}

// Tokens that masks force are drafted before anything else, and teach nothing about text or head.
TEST(DepthController, ForcedTokensAreCertainAndTeachNothing) {
  Controller controller({4, 2, 1});
  RowAcceptance forced, wrong;
  const auto times = [](std::int64_t tokens) { return Controller::Times{0, 10 + 0.1 * static_cast<double>(tokens)}; };
  for (int i = 0; i < 40; ++i) {
    const Controller::RowOutcome outcomes[] = {{&forced, 0, 0, DraftSource::text}, {&wrong, 0, 0, DraftSource::text}};
    controller.observe(0, outcomes, times(2), Controller::Prompts::none);
  }
  for (int i = 0; i < 40; ++i) {  // its text is never right
    const Controller::RowOutcome outcomes[] = {{&forced, 4, 0, DraftSource::text}, {&wrong, 4, 0, DraftSource::text}};
    controller.observe(0, outcomes, times(10), Controller::Prompts::none);
  }
  for (int i = 0; i < 40; ++i) {
    const Controller::RowOutcome outcomes[] = {{&forced, 4, 4, DraftSource::forced}, {&wrong, 0, 0, DraftSource::text}};
    controller.observe(0, outcomes, times(6), Controller::Prompts::none);
  }
  const Controller::Row rows[] = {{&forced, 4, DraftSource::forced}, {&wrong, 4, DraftSource::text}};
  std::int64_t depths[2] = {};
  for (int i = 0; i < 3 && depths[0] == 0; ++i) {  // the plain step is measured again in between
    controller.plan(rows, depths);
    const Controller::RowOutcome plain[] = {{&forced, 0, 0, DraftSource::text}, {&wrong, 0, 0, DraftSource::text}};
    if (depths[0] == 0) controller.observe(0, plain, times(2), Controller::Prompts::none);
  }
  EXPECT_EQ(depths[0], 4);
  EXPECT_EQ(depths[1], 0);
  EXPECT_EQ(controller.source_of(forced), DraftSource::head);  // not text, for all the forced tokens that stood
}

}  // namespace
}  // namespace outrider
