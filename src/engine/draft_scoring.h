// What the MTP head of a model says to known tokens: its rows in one pass over true hiddens, for conformance
// (models.md section 6.1). A stream of drafts is mtp_rows' matter.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "device/device.h"
#include "models/model.h"

namespace outrider {

// Rows [position, position + n): m [n,E] (after mtp.norm) and their logits [n,V]. Borrowed for the call.
struct DraftScores {
  std::int64_t position = 0;
  std::span<const float> hidden, logits;
};

// What the hiddens are: the target's, pre-norm as Model::forward gives them (the tap is the head's), or outputs of the
// head itself.
enum class DraftInput : std::uint8_t { target, chained };

// Row p = (ids[p+1], hiddens row p) at position p, for p in [0, T-1). hiddens [T,E]. At most `chunk_tokens` rows of a
// pass. Takes memory of its own (one layer of KV for T tokens, the scratch of a chunk). Error: usage (the model has no
// head), runtime (a value that is not finite).
void score_drafts(const Model& model, Device& device, std::span<const std::int32_t> ids, std::span<const float> hiddens,
                  DraftInput input, std::int64_t chunk_tokens, const std::function<void(const DraftScores&)>& deliver);

// The memory it takes, but for a few lists of `chunk_tokens` entries.
std::size_t draft_scoring_bytes(const NativeDraft& draft, const Declaration& model, const Device& device,
                                std::int64_t tokens, std::int64_t chunk_tokens);

}  // namespace outrider
