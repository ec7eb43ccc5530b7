// Which tokens a draft vocabulary holds (serving.md section 3): those that must never be missing, then the most
// frequent ones, by the model's draft_vocabulary.json or else by id (BPE numbers its merges by frequency).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "text/tokenizer.h"

namespace outrider {

// Without a wish: as many as are ranked; else kUsualDraftTokens of a vocabulary above kLargeVocabulary, whose head
// takes much of a draft's time, and no subset of others.
inline constexpr std::int64_t kUsualDraftTokens = 32768, kLargeVocabulary = 65536;

// How many rows of a head of `vocab` are a draft vocabulary of their own; 0: there is none, drafts use all.
std::int64_t draft_token_count(std::optional<std::int64_t> wish, std::int64_t vocab, std::int64_t ranked);

// Special tokens, those spelled like markers (<think>, [TOOL_CALLS]) and single bytes, ascending.
std::vector<std::int32_t> indispensable_tokens(const Tokenizer& tokenizer);

// `count` tokens below `vocab`, ascending: the indispensable and end tokens, then of `ranking`, then from 0 on. Error
// (usage) when the former alone are more.
std::vector<std::int32_t> draft_tokens(std::int64_t count, std::int64_t vocab,
                                       std::span<const std::int32_t> indispensable,
                                       std::span<const std::int32_t> end_tokens, std::span<const std::int32_t> ranking);

// The `count` tokens below `vocab` that occur most often in `text`, ties and those that never do by id.
std::vector<std::int32_t> ranked_by_frequency(std::span<const std::int32_t> text, std::int64_t vocab,
                                              std::int64_t count);

}  // namespace outrider
