// The loops behind kernels/peaks.h, one set per instruction set.
#pragma once

#include "kernels/peaks.h"

namespace outrider {

PeakLoop portable_peak_loop(PeakKind kind);
std::uint64_t portable_read_sum(const std::uint64_t* words, std::size_t bytes);

#ifdef __x86_64__
PeakLoop avx2_peak_loop(PeakKind kind);
std::uint64_t avx2_read_sum(const std::uint64_t* words, std::size_t bytes);
PeakLoop avx512_peak_loop(PeakKind kind);
PeakLoop avx512_vnni_peak_loop(PeakKind kind);
PeakLoop amx_peak_loop(PeakKind kind);
std::uint64_t avx512_read_sum(const std::uint64_t* words, std::size_t bytes);
#endif

}  // namespace outrider
