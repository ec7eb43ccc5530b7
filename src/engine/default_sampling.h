// generation_config.json over the built-in sampling values.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/engine.h"

namespace outrider {

// `generation` may be null. Values of a wrong type or range are ignored with a warning (models.md 1.1). A file that
// says do_sample false means greedy, whatever else it holds; do_sample true without a temperature means 1.
SamplingParams default_sampling(const nlohmann::json& generation);

}  // namespace outrider
