// The decisions of a conversion, shared by the dry run and the run. Inside this room only.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weights/convert.h"
#include "weights/safetensors.h"
#include "weights/stored_model.h"

namespace outrider {

// One module or tensor and the tensors it becomes.
struct ConvertStep {
  ConvertItem item;
  bool is_matrix = false;
  FloatType type = FloatType::f32;    // of the values, or of scale and bias
  std::vector<StoredTensor> outputs;  // name, dtype, shape, bytes
};

struct ConvertDecisions {
  std::vector<ConvertStep> steps;  // sorted by name
  ConvertPlan plan;
};

ConvertDecisions decide_convert(const StoredModel& source, const ConvertOptions& options);
// The source's config with the quantization map of these steps in place of its own.
nlohmann::json converted_config(const StoredModel& source, const std::vector<ConvertStep>& steps);
// Removes the steps of an MTP head and returns them as a side-car names them, without "mtp.".
std::vector<ConvertStep> take_head(std::vector<ConvertStep>& steps);
// config.json of a side-car folder (models.md 4.3).
nlohmann::json side_car_config(const StoredModel& source, const std::vector<ConvertStep>& head);

}  // namespace outrider
