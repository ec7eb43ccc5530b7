// Drafts from the text itself (prompt lookup): what followed the last earlier occurrence of the text's own ending.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace outrider {

struct NgramLimits {
  std::int64_t shortest = 3;  // endings of this many tokens at least; shorter ones recur by chance
  std::int64_t longest = 8;   // and at most
};

// One request's text. After every token it knows the longest ending, within the limits, that occurred before, and where
// last. A token costs longest - shortest + 1 look-ups; memory is bytes_for() of the text. Move-only.
class NgramDrafter {
 public:
  explicit NgramDrafter(NgramLimits limits);
  NgramDrafter(NgramDrafter&&) noexcept = default;
  NgramDrafter& operator=(NgramDrafter&&) noexcept = default;

  // Prompt first, then tokens as they are emitted. On failure of memory the text is as it was.
  void append(std::span<const std::int32_t> tokens);
  std::int64_t size() const { return static_cast<std::int64_t>(text_.size()); }
  // Length of the ending that occurred before; 0: none of the shortest length.
  std::int64_t match_length() const { return match_length_; }
  // Fills `out` with what follows; past the end of the text it goes on with itself, so that a repetition of any period
  // is drafted as deep as asked. Returns out.size(), or 0 without a match.
  std::int64_t propose(std::span<std::int32_t> out) const;

  // Most bytes a text of `tokens` takes.
  static std::size_t bytes_for(NgramLimits limits, std::int64_t tokens);

 private:
  // Of one length: the newest end of every n-gram, open addressing over a power of two of slots, -1 empty.
  struct Table {
    std::int64_t length = 0;
    std::vector<std::int32_t> ends;
  };
  static std::int64_t slots_for(std::int64_t tokens);
  std::int32_t* find(Table& table, std::uint64_t hash, std::int64_t end);
  std::uint64_t hash_of(std::int64_t length, std::int64_t end) const;
  void make_room(std::int64_t tokens);
  void take(std::int32_t token);

  NgramLimits limits_;
  std::vector<std::int32_t> text_;
  std::vector<Table> tables_;
  std::int64_t match_length_ = 0, match_end_ = 0;
};

}  // namespace outrider
