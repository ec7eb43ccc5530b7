// What an MTP head reaches under each reading of it (models.md 4.2, 4.3): which hidden of the target it was trained on,
// whether accepted rows are rewritten from the target's hiddens, and what its norms mean where the files do not say.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "speculate/mtp_state.h"

namespace outrider {

// Rounds of one prompt's answer, by how many proposals stood.
struct RoundCounts {
  std::vector<std::int64_t> stood;  // [depth + 1]
};

struct DraftReading {
  HiddenTap tap = HiddenTap::post_norm;
  NormCentre norms = NormCentre::one;
  bool norms_known = true;  // else both meanings are measured
  Refresh refresh = Refresh::from_target;
  std::vector<RoundCounts> prompts;
  std::size_t places() const { return prompts.empty() ? 0 : prompts[0].stood.size() - 1; }
};
std::string name_of(const DraftReading& reading);

// error: the standard error.
struct Estimate {
  double value = 0, error = 0;
};
// sum(part) / sum(whole) over prompts. Its error takes each prompt for one draw, since rounds of one text depend on
// each other: with residuals r_i = part_i - value * whole_i, sqrt(n/(n-1) * sum r_i^2) / sum(whole).
Estimate ratio_over_prompts(std::span<const double> part, std::span<const double> whole);

// Of the proposals at a place that are reached (those before them stood), the share that stands.
Estimate accepted_at(const DraftReading& reading, std::size_t place);
// Tokens of a round: those that stand and the target's own.
Estimate accepted_length(const DraftReading& reading);

// The best tap (and norms), against the next one, under the default refresh, by acceptance at the first place. Both
// answered the same prompts with the same text, so prompts are compared one by one.
struct ReadingLead {
  static constexpr double kClear = 4;  // standard errors
  std::string best, second;
  Estimate difference;
  bool is_clear() const { return difference.value > kClear * difference.error; }
};
std::optional<ReadingLead> lead_of(std::span<const DraftReading> readings);

// Tokens written, of how many in all.
using ReadingsProgress = std::function<void(std::int64_t done, std::int64_t all)>;

// Answers of at least 20,000 tokens to the held prompts, drafted at a fixed depth, for each reading; a head whose norms
// are unknown is opened all the same. Error: as DraftBench, and a tap that is given (usage). A stop leaves out what is
// not finished. Both functions may be empty.
std::vector<DraftReading> measure_draft_readings(const LoadOptions& options, std::int64_t depth,
                                                 const ReadingsProgress& progress, const std::function<bool()>& stop);
// The same errors, without loading anything.
void check_draft_readings(const LoadOptions& options, std::int64_t depth);

}  // namespace outrider
