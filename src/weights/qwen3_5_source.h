// A Qwen3.5 checkpoint read as one form, whatever its layout (models.md 1.12, 4.3): norms of 1+w as they multiply,
// conv1d [C, W, 1], in_proj_{qkv,z,b,a} apart, the MTP head under mtp.* wherever it lies. Inside this room only.
#pragma once

#include <memory>

#include "weights/safetensors_source.h"

namespace outrider {

// Error (data): everything models.md 1.12, 4.3 and 4.6 refuse by names, shapes and metadata.
std::unique_ptr<StoredModel> read_as_qwen3_5(std::unique_ptr<SafetensorsModel> trunk, const SourceOptions& options);

}  // namespace outrider
