#include "weights/draft_ranking.h"

#include <fmt/format.h>

#include "weights/file_error.h"
#include "weights/json_strict.h"

namespace outrider {

std::vector<std::int32_t> read_draft_ranking(const std::filesystem::path& model, std::int64_t vocab) {
  const std::filesystem::path path = model / kDraftRankingFile;
  std::error_code failed;
  if (!std::filesystem::exists(path, failed)) return {};
  constexpr const char* kHint = "make it again with `outrider convert --draft-vocab`, or remove it";
  // A line for each token at most, and what stands around them.
  const std::uintmax_t bytes = std::filesystem::file_size(path, failed),
                       most = 64 + static_cast<std::uintmax_t>(vocab) * 16;
  if (!failed && bytes > most)
    throw file_error(path.string(), fmt::format("has {} bytes, {} tokens take at most {}", bytes, vocab, most), kHint);
  const nlohmann::json document = read_json_file(path);
  if (!document.is_object() || document.size() != 1 || !document.contains("ids") || !document["ids"].is_array() ||
      document["ids"].empty())
    throw file_error(path.string(), "is not {\"ids\": [token, ..]}", kHint);
  std::vector<std::int32_t> ids;
  ids.reserve(document["ids"].size());
  std::vector<bool> seen(static_cast<std::size_t>(vocab));
  for (const nlohmann::json& value : document["ids"]) {
    if (!value.is_number_integer() || value < 0 || value >= vocab)
      throw file_error(path.string(), fmt::format("{} is no token of the {} of the model", value.dump(), vocab), kHint);
    ids.push_back(value.get<std::int32_t>());
    auto taken = seen[static_cast<std::size_t>(ids.back())];
    if (taken) throw file_error(path.string(), fmt::format("names token {} twice", ids.back()), kHint);
    taken = true;
  }
  return ids;
}

std::string draft_ranking_text(std::span<const std::int32_t> ids) {
  return fmt::format("{{\"ids\": [{}]}}\n", fmt::join(ids, ", "));
}

}  // namespace outrider
