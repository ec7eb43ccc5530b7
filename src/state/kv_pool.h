// Inside of KvPool and KvRow: the blocks and their layout.
#pragma once

#include <cstdint>

#include "state/kv_row.h"
#include "state/shared_buffers.h"

namespace outrider {

struct KvBlockStore {
  KvLayout layout;
  SharedBuffers blocks;

  KvBlockStore(KvLayout shape, BufferCapacity capacity);
  // Error (memory) unless `count` more blocks fit.
  void check_room(std::int64_t count, std::int64_t tokens) const;
};

}  // namespace outrider
