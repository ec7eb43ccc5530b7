// How a draft's logits become a proposal: the same noise as the target's draw at that index, or the rule the request
// asked for (serving.md section 3). The engine implements it beside its sampler.
#pragma once

#include <cstdint>
#include <span>

#include "layers/step.h"

namespace outrider {

// One row of logits: of which row of the group, and the index t of the token it proposes.
struct DraftPick {
  std::int64_t row = 0;
  std::int64_t t = 0;
};

enum class Picked : std::uint8_t {
  proposal,
  nothing,  // no token of the draft vocabulary is allowed, or the draft is not sure enough: the row's draft ends here
  failed    // the row's round is given up
};

struct DraftChoice {
  Picked picked = Picked::nothing;
  std::int32_t id = -1;
};

class DraftPort {
 public:
  virtual ~DraftPort() = default;
  // Decides out[i] from row i of logits [R, columns], which may be overwritten. `ids`: DraftModule::head_ids().
  virtual void choose(const Step& step, Tensor logits, std::span<const std::int32_t> ids,
                      std::span<const DraftPick> rows, std::span<DraftChoice> out) = 0;
};

}  // namespace outrider
