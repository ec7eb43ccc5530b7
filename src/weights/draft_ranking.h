// draft_vocabulary.json beside config.json: token ids by falling frequency in some text, the first choice of a draft
// vocabulary (serving.md section 3). {"ids": [..]}
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace outrider {

inline constexpr const char* kDraftRankingFile = "draft_vocabulary.json";

// Of a model as resolve_model() names it; empty: it has no such file. Error (data): not that form, an id outside
// [0, vocab), one twice, none at all.
std::vector<std::int32_t> read_draft_ranking(const std::filesystem::path& model, std::int64_t vocab);
// The text of the file.
std::string draft_ranking_text(std::span<const std::int32_t> ids);

}  // namespace outrider
