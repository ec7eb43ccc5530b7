// The logit processors P0 to P6 of serving.md 2.1, in place on one row of f32 logits z [V], in that order.
#pragma once

#include <cstdint>
#include <span>

#include "engine/token_chooser.h"

namespace outrider {

// P0: ids that the tokenizer does not have become -inf.
void mask_padded_ids(std::span<float> z, std::int64_t tokenizer_size);

// P1 to P6: bias, repetition, presence, frequency, end mask, the mask of the rolled state.
void apply_processors(std::span<float> z, const ChoosingRow& row);

// Whether a value is NaN or +inf, before or after the processors: such a row fails with numeric_error.
bool has_bad_logit(std::span<const float> z);

}  // namespace outrider
