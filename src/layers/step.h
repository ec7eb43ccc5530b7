// What surrounds one step: the device it runs on, the arena its scratch comes from, where faults and clamps are noted.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace outrider {

// Borrowed. `faults` has one entry per row of the input at hand ([T] in a forward, [R] in a head); zeroed by the caller
// and OR-ed by operations (numerics.md section 8). `kv_clamps`: values that did not fit the KV rows, of each token of a
// forward's input ([T], added to), or null.
struct Step {
  Device& device;
  Arena& arena;
  std::uint32_t* faults = nullptr;
  std::int64_t* kv_clamps = nullptr;
};

}  // namespace outrider
