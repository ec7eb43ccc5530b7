// The registry (models.md section 5): which architecture a config.json names, as one row of functions per graph.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "layers/module_builder.h"
#include "models/llama_config.h"
#include "models/model.h"

namespace outrider {

// The Llama-shaped family a config names: `model_type` decides, `architectures` must not contradict. Error (data): no
// model_type, an unknown one, or a known one that is not supported, with the reason.
const LlamaFamily& llama_family(const nlohmann::json& config, std::string_view origin);

// Error (data) unless the declaration is complete and claims only what the graph has (runtime.md section 6): its dims,
// its cache layers, and an adapter target for existing Linears of the same shape only.
void check_declaration(const Declaration& declaration, const LinearShapes& graph);

}  // namespace outrider
