#include "engine/draft_tokens.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/error.h"

namespace outrider {
namespace {

// Markers of reasoning and tools that a tokenizer does not call special; a few tokens of markup are among them.
bool is_marker(const std::string& piece) {
  return piece.size() > 2 &&
         ((piece.front() == '<' && piece.back() == '>') || (piece.front() == '[' && piece.back() == ']'));
}

}  // namespace

std::int64_t draft_token_count(std::optional<std::int64_t> wish, std::int64_t vocab, std::int64_t ranked) {
  const std::int64_t usual = ranked > 0 ? ranked : vocab > kLargeVocabulary ? kUsualDraftTokens : 0;
  const std::int64_t count = wish.value_or(usual);
  return count < vocab ? count : 0;
}

std::vector<std::int32_t> indispensable_tokens(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < tokenizer.size(); ++id)
    if (tokenizer.is_special(id) || tokenizer.token_bytes(id).size() == 1 || is_marker(tokenizer.piece(id)))
      ids.push_back(id);
  return ids;
}

std::vector<std::int32_t> draft_tokens(std::int64_t count, std::int64_t vocab,
                                       std::span<const std::int32_t> indispensable,
                                       std::span<const std::int32_t> end_tokens,
                                       std::span<const std::int32_t> ranking) {
  OUTRIDER_CHECK(count > 0 && count <= vocab, "{} draft tokens of {}", count, vocab);
  std::vector<bool> taken(static_cast<std::size_t>(vocab));
  std::int64_t left = count;
  const auto take = [&](std::int32_t id) {
    if (id >= vocab || taken[static_cast<std::size_t>(id)]) return;  // a tokenizer may have more tokens than the head
    taken[static_cast<std::size_t>(id)] = true;
    --left;
  };
  std::for_each(indispensable.begin(), indispensable.end(), take);
  std::for_each(end_tokens.begin(), end_tokens.end(), take);
  if (left < 0)
    throw Error(ErrorKind::usage,
                fmt::format("a draft vocabulary of {} tokens, {} must be in it (special tokens, markers, single bytes)",
                            count, count - left),
                fmt::format("--draft-vocab {} or more, or 0 for the full head", count - left));
  for (auto id = ranking.begin(); id != ranking.end() && left > 0; ++id) take(*id);
  std::int32_t next = 0;
  while (left > 0) take(next++);
  std::vector<std::int32_t> ids;
  ids.reserve(static_cast<std::size_t>(count));
  for (std::int32_t id = 0; id < vocab; ++id)
    if (taken[static_cast<std::size_t>(id)]) ids.push_back(id);
  return ids;
}

std::vector<std::int32_t> ranked_by_frequency(std::span<const std::int32_t> text, std::int64_t vocab,
                                              std::int64_t count) {
  std::vector<std::int64_t> seen(static_cast<std::size_t>(vocab));
  for (const std::int32_t id : text)
    if (id < vocab) ++seen[static_cast<std::size_t>(id)];
  std::vector<std::int32_t> ids(seen.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    const std::int64_t of_a = seen[static_cast<std::size_t>(a)], of_b = seen[static_cast<std::size_t>(b)];
    return of_a > of_b || (of_a == of_b && a < b);
  });
  ids.resize(static_cast<std::size_t>(std::min(count, vocab)));
  return ids;
}

}  // namespace outrider
