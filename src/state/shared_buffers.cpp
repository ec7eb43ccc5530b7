#include "state/shared_buffers.h"

#include <cstring>

#include "base/error.h"

namespace outrider {

SharedBuffers::SharedBuffers(std::size_t bytes, MemoryPart part, std::int64_t capacity)
    : bytes_(bytes), part_(part), capacity_(capacity) {
  OUTRIDER_CHECK(capacity >= 0, "{} buffers", capacity);
}

SharedBuffers::~SharedBuffers() {
  OUTRIDER_CHECK(used_ == 0, "a pool of {} bytes ends while rows hold {} buffers", name_of(part_), used_);
  trim();
}

SharedBuffer* SharedBuffers::take(BufferFill fill) {
  OUTRIDER_CHECK(used_ < capacity_, "a {} buffer beyond the {} of the pool", name_of(part_), capacity_);
  SharedBuffer* buffer = released_;
  if (buffer == nullptr) {
    buffer = new SharedBuffer(bytes_, part_);
  } else {
    released_ = std::exchange(buffer->next, nullptr);
  }
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

void SharedBuffers::trim() noexcept {
  while (released_ != nullptr) {
    SharedBuffer* buffer = released_;
    released_ = buffer->next;
    delete buffer;
  }
}

}  // namespace outrider
