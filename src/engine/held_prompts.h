// The prompts that drafts are measured on: openings of technical documentation, written for this bench, so that no
// model has been trained on them. What follows is the model's.
#pragma once

#include <array>
#include <string_view>

namespace outrider {

inline constexpr std::size_t kHeldPromptCount = 20;
const std::array<std::string_view, kHeldPromptCount>& held_prompts();

}  // namespace outrider
