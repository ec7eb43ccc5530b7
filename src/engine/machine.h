// What this machine gives at most, measured in the process and at the time of what is compared with it: a machine's
// speed varies by the hour.
#pragma once

#include <cstdint>
#include <vector>

#include "base/memory.h"
#include "device/device.h"
#include "kernels/peaks.h"

namespace outrider {

// Over all threads of a device. Multiply-adds of the instruction set in use (kernels()).
struct MachineLimits {
  double read_gb_per_s = 0;
  double f32_gmac_per_s = 0, i16_gmac_per_s = 0, i8_gmac_per_s = 0;
};

// Measures with the threads of `device` (borrowed), which must be between steps. A measurement is the best of the
// passes it has time for: a limit is what can be reached, and a pass that was disturbed does not show it.
class MachineProbe {
 public:
  // The read bandwidth is measured over whole MiB of `buffer_bytes` (charged to MemoryPart::fixed). Meaningful from
  // probe_bytes() on; below 1 MiB it is 0.
  MachineProbe(Device& device, std::size_t buffer_bytes);
  double read_gb_per_s(double seconds);
  double gmac_per_s(PeakKind kind, double seconds);
  // Each of the four for `seconds`.
  MachineLimits measure(double seconds);

 private:
  Device& device_;
  std::int64_t pieces_;
  AlignedBuffer buffer_;
  std::vector<std::uint64_t> sums_;  // of the pieces
};

// The buffer a probe takes where memory is plenty: four times the last cache, at least 256 MiB.
std::size_t probe_bytes();
// Where less is left, nothing is measured: four times the last cache of small machines. Where the last cache is larger,
// a buffer of less than probe_bytes() measures that cache in part: the limit is then too high, never too low.
inline constexpr std::size_t kLeastProbeBytes = std::size_t{32} << 20;

}  // namespace outrider
