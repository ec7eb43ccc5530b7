#include "speculate/ngram_drafter.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"

namespace outrider {
namespace {

constexpr std::int64_t kFirstSlots = 64;
constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15ull;  // odd, of the golden ratio

std::uint64_t hash_with(std::uint64_t hash, std::int32_t token) {
  hash = (hash ^ static_cast<std::uint32_t>(token)) * kMultiplier;
  return hash ^ hash >> 29;
}

}  // namespace

NgramDrafter::NgramDrafter(NgramLimits limits) : limits_(limits) {
  OUTRIDER_CHECK(limits.shortest >= 1 && limits.longest >= limits.shortest, "n-grams of {} to {} tokens",
                 limits.shortest, limits.longest);
  for (std::int64_t n = limits.shortest; n <= limits.longest; ++n) tables_.push_back({n, {}});
}

// At most half of the slots are taken.
std::int64_t NgramDrafter::slots_for(std::int64_t tokens) {
  return std::max(kFirstSlots, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(2 * tokens))));
}

std::size_t NgramDrafter::bytes_for(NgramLimits limits, std::int64_t tokens) {
  const std::int64_t tables = limits.longest - limits.shortest + 1;
  return static_cast<std::size_t>(2 * tokens + tables * slots_for(tokens)) * sizeof(std::int32_t);
}

// Of the `length` tokens that end at `end`, newest first, so that one walk back hashes every length.
std::uint64_t NgramDrafter::hash_of(std::int64_t length, std::int64_t end) const {
  std::uint64_t hash = 0;
  for (std::int64_t i = 0; i < length; ++i) hash = hash_with(hash, text_[static_cast<std::size_t>(end - i)]);
  return hash;
}

// The slot of the n-gram that ends at `end`: the one that holds an equal n-gram, or the empty one where it belongs.
std::int32_t* NgramDrafter::find(Table& table, std::uint64_t hash, std::int64_t end) {
  const std::size_t mask = table.ends.size() - 1;
  const auto begin = text_.begin() + end + 1 - table.length;
  for (std::size_t slot = hash & mask;; slot = (slot + 1) & mask) {
    std::int32_t& held = table.ends[slot];
    if (held < 0 || std::equal(begin, begin + table.length, text_.begin() + held + 1 - table.length)) return &held;
  }
}

void NgramDrafter::append(std::span<const std::int32_t> tokens) {
  OUTRIDER_CHECK(size() + std::ssize(tokens) < std::numeric_limits<std::int32_t>::max(), "a text of {} tokens", size());
  make_room(size() + std::ssize(tokens));
  for (const std::int32_t token : tokens) take(token);
}

// All that can fail: nothing is lost when it does.
void NgramDrafter::make_room(std::int64_t tokens) {
  if (text_.capacity() < static_cast<std::size_t>(tokens))
    text_.reserve(std::max(static_cast<std::size_t>(tokens), std::min(text_.capacity() * 2, std::size_t{1} << 30)));
  for (Table& table : tables_) {
    if (std::ssize(table.ends) >= slots_for(tokens)) continue;
    std::vector<std::int32_t> grown(static_cast<std::size_t>(slots_for(tokens)), -1);
    grown.swap(table.ends);
    // `grown` holds the old slots now.
    for (const std::int32_t end : grown)
      if (end >= 0) *find(table, hash_of(table.length, end), end) = end;
  }
}

void NgramDrafter::take(std::int32_t token) {
  text_.push_back(token);
  const std::int64_t end = size() - 1;
  match_length_ = 0;
  std::uint64_t hash = 0;
  for (std::int64_t n = 1; n <= std::min(limits_.longest, size()); ++n) {
    hash = hash_with(hash, text_[static_cast<std::size_t>(end + 1 - n)]);
    if (n < limits_.shortest) continue;
    std::int32_t* const slot = find(tables_[static_cast<std::size_t>(n - limits_.shortest)], hash, end);
    if (*slot >= 0) {
      match_length_ = n;
      match_end_ = *slot;
    }
    *slot = static_cast<std::int32_t>(end);
  }
}

std::int64_t NgramDrafter::propose(std::span<std::int32_t> out) const {
  if (match_length_ == 0) return 0;
  for (std::int64_t i = 0; i < std::ssize(out); ++i) {
    const std::int64_t at = match_end_ + 1 + i;
    out[static_cast<std::size_t>(i)] =
        at < size() ? text_[static_cast<std::size_t>(at)] : out[static_cast<std::size_t>(at - size())];
  }
  return std::ssize(out);
}

}  // namespace outrider
