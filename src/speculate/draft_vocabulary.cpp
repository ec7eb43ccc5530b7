#include "speculate/draft_vocabulary.h"

#include <cstring>
#include <utility>

#include "base/error.h"

namespace outrider {
namespace {

constexpr std::int64_t kPanelRows = PackedMatrix::kPanelRows;
constexpr std::int64_t kStripRows = PackedMatrix::kStripRows;
constexpr std::size_t kWordBytes = 4;

PackedMatrix form_of(const PackedMatrix& head, std::int64_t rows) {
  PackedMatrix form = head;
  form.n = rows;
  form.data = nullptr;
  return form;
}

// The lane of one row in every line of a block: its scale and bias, then its word of each line of 16.
void copy_lane(const PackedMatrix& form, const std::byte* from, std::int64_t from_lane, std::byte* to,
               std::int64_t to_lane) {
  const std::size_t value = size_of(form.scale_type);
  const auto lane_copy = [&](std::size_t begin, std::size_t end, std::size_t size) {
    for (std::size_t line = begin; line < end; line += kPanelRows * size)
      std::memcpy(to + line + static_cast<std::size_t>(to_lane) * size,
                  from + line + static_cast<std::size_t>(from_lane) * size, size);
  };
  const std::size_t head_bytes = form.coded() ? form.head_bytes() : form.block_bytes();
  lane_copy(0, head_bytes, value);
  lane_copy(head_bytes, form.block_bytes(), kWordBytes);
}

std::size_t block_of(const PackedMatrix& form, std::int64_t row, std::int64_t depth) {
  return form.offset(row / kStripRows, depth, row % kStripRows / kPanelRows);
}

}  // namespace

std::size_t draft_vocabulary_bytes(const PackedMatrix& head, std::int64_t ids) { return form_of(head, ids).bytes(); }

DraftVocabulary make_draft_vocabulary(const PackedMatrix& head, std::vector<std::int32_t> ids) {
  DraftVocabulary out;
  PackedMatrix& form = out.head.view = form_of(head, static_cast<std::int64_t>(ids.size()));
  OUTRIDER_CHECK(!ids.empty(), "a draft vocabulary without tokens");
  out.head.storage = AlignedBuffer(form.bytes(), MemoryPart::weights);
  std::byte* const data = out.head.storage.data();
  std::int32_t before = -1;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    OUTRIDER_CHECK(ids[i] > before && ids[i] < head.n, "draft token {} after {}, of {}", ids[i], before, head.n);
    before = ids[i];
    const auto row = static_cast<std::int64_t>(i);
    for (std::int64_t d = 0; d < head.depth(); ++d)
      copy_lane(form, head.data + block_of(head, ids[i], d), ids[i] % kPanelRows, data + block_of(form, row, d),
                row % kPanelRows);
  }
  form.data = data;
  out.ids = std::move(ids);
  return out;
}

}  // namespace outrider
