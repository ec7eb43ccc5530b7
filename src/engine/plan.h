// The memory plan of an engine (serving.md 5.1), from headers alone, and the limits that follow from it.
#pragma once

#include <cstdint>

#include "engine/core.h"
#include "engine/engine.h"

namespace outrider {

struct EnginePlan {
  MemoryPlan memory;
  ModelPlan model;
  CoreLimits limits;
};

// `text_bytes`: estimated or measured. A context of 0 becomes the model's, or the largest that fits; options out of
// range: Error (usage). A plan over the budget is returned as it is: fits() says so.
EnginePlan plan_engine(const LoadOptions& options, const ModelSource& source, const Device& device,
                       std::uint64_t text_bytes);

// The budget the options name, or a share of the memory this process may use.
std::uint64_t budget_bytes(const LoadOptions& options);

// Error (memory) with the numbers, for a plan that does not fit.
Error over_budget(const MemoryPlan& plan);

// Bytes of weights one plain decode step reads: all but an untied embedding, of which it reads a row, and an MTP head.
std::uint64_t step_weight_bytes(const ModelPlan& model);

}  // namespace outrider
