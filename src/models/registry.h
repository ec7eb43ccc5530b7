// The registry (models.md section 5): which architecture a config.json names, as one row of functions per graph.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "models/llama_config.h"
#include "models/model.h"

namespace outrider {

// The Llama-shaped family a config names: `model_type` decides, `architectures` must not contradict. Error (data): no
// model_type, an unknown one, or a known one that is not supported, with the reason.
const LlamaFamily& llama_family(const nlohmann::json& config, std::string_view origin);

// CHECKs that a declaration is complete and agrees with itself (runtime.md section 6).
void check_declaration(const Declaration& declaration);

}  // namespace outrider
