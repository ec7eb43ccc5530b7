#include "state/shared_buffers.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace outrider {
namespace {

// A slab has one buffer for every four that exist: what is charged ahead of its use stays small.
constexpr std::int64_t kBuffersPerSlabBuffer = 4;
// Larger slabs would gain nothing: of these at most one page in sixteen is small.
constexpr std::size_t kSlabBytes = 16 * AlignedBuffer::kLargePage;

std::size_t alignment_of(std::size_t bytes) {
  return bytes >= AlignedBuffer::kLargePage ? AlignedBuffer::kLargePage : AlignedBuffer::kLine;
}

}  // namespace

BufferSlab::BufferSlab(std::int64_t buffers_count, std::size_t bytes, MemoryPart charged)
    : count(buffers_count),
      part(charged),
      memory(static_cast<std::size_t>(count) * bytes, part, alignment_of(static_cast<std::size_t>(count) * bytes)),
      buffers(std::make_unique<SharedBuffer[]>(static_cast<std::size_t>(count))) {
  for (std::int64_t i = 0; i < count; ++i) {
    buffers[static_cast<std::size_t>(i)].memory = {memory.data() + static_cast<std::size_t>(i) * bytes, bytes};
    buffers[static_cast<std::size_t>(i)].slab = this;
  }
}

SharedBuffers::SharedBuffers(std::size_t bytes, MemoryPart part, BufferCapacity capacity)
    : bytes_(bytes), part_(part), capacity_(capacity) {
  OUTRIDER_CHECK(capacity.rows >= 0 && capacity.prefix >= 0, "{} and {} buffers", capacity.rows, capacity.prefix);
}

SharedBuffers::~SharedBuffers() {
  OUTRIDER_CHECK(used_ == 0, "a pool of {} bytes ends while rows hold {} buffers", name_of(part_), used_);
  trim();
}

SharedBuffer* SharedBuffers::take(BufferFill fill) {
  OUTRIDER_CHECK(used_ < capacity(), "a {} buffer beyond the {} of the pool", name_of(part_), capacity());
  if (released_ == nullptr) grow();
  SharedBuffer* buffer = released_;
  released_ = std::exchange(buffer->next, nullptr);
  if (buffer->used_before && fill == BufferFill::zeroed) std::memset(buffer->memory.data(), 0, buffer->memory.size());
  buffer->used_before = true;
  buffer->owners = 1;
  ++used_;
  return buffer;
}

void SharedBuffers::drop_owner(SharedBuffer* buffer) noexcept {
  OUTRIDER_CHECK(buffer->owners > 0);
  if (--buffer->owners > 0) return;
  --used_;
  buffer->next = released_;
  released_ = buffer;
}

void SharedBuffers::grow() {
  // Only buffers of whole cache lines stand side by side.
  const auto most = bytes_ % AlignedBuffer::kLine == 0 ? static_cast<std::int64_t>(kSlabBytes / bytes_) : 1;
  const bool for_rows = allocated_.rows < capacity_.rows;
  std::int64_t& allocated = for_rows ? allocated_.rows : allocated_.prefix;
  const std::int64_t room = (for_rows ? capacity_.rows : capacity_.prefix) - allocated;
  const std::int64_t wish =
      std::clamp<std::int64_t>(allocated_.all() / kBuffersPerSlabBuffer, 1, std::max<std::int64_t>(most, 1));
  auto slab = std::make_unique<BufferSlab>(std::min(wish, room), bytes_, for_rows ? part_ : MemoryPart::prefix);
  allocated += slab->count;
  // The first one on top: memory is touched from its beginning.
  for (std::int64_t i = slab->count - 1; i >= 0; --i) {
    SharedBuffer& buffer = slab->buffers[static_cast<std::size_t>(i)];
    buffer.next = std::exchange(released_, &buffer);
  }
  slab->next = slabs_;
  slabs_ = slab.release();
}

void SharedBuffers::trim() noexcept {
  for (SharedBuffer* b = released_; b != nullptr; b = b->next) ++b->slab->idle;
  for (SharedBuffer** at = &released_; *at != nullptr;) {
    SharedBuffer& buffer = **at;
    if (buffer.slab->idle == buffer.slab->count)
      *at = buffer.next;
    else
      at = &buffer.next;
  }
  for (BufferSlab** at = &slabs_; *at != nullptr;) {
    BufferSlab* const slab = *at;
    if (std::exchange(slab->idle, 0) == slab->count) {
      (slab->part == part_ ? allocated_.rows : allocated_.prefix) -= slab->count;
      *at = slab->next;
      delete slab;
    } else {
      at = &slab->next;
    }
  }
}

}  // namespace outrider
