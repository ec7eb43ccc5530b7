// The name a user probably meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace outrider {

// The candidate with the smallest edit distance to `name` (the first of equals), or "" when none is near: farther than
// a third of its length, at least 2.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

}  // namespace outrider
