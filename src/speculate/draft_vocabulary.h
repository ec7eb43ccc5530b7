// A draft vocabulary (serving.md section 3): some rows of the target's head, packed for themselves, so that drafts do
// not read all of it. Verification always uses the full head, so the text does not depend on the choice.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weights/model_source.h"

namespace outrider {

// Immutable. ids ascending, without repetition.
struct DraftVocabulary {
  PackedWeight head;              // [ids, E], the form of the head it was taken from
  std::vector<std::int32_t> ids;  // the token of each row
};

// Rows `ids` of `head` (codes, scales and biases as they are: their logits have the full head's bytes). ids are
// ascending tokens of the head; charged to MemoryPart::weights. Error (memory).
DraftVocabulary make_draft_vocabulary(const PackedMatrix& head, std::vector<std::int32_t> ids);
std::size_t draft_vocabulary_bytes(const PackedMatrix& head, std::int64_t ids);

}  // namespace outrider
