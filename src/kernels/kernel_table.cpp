#include "kernels/kernel_table.h"

#include <array>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "kernels/cpu/tables.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace outrider {
namespace {

struct NamedIsa {
  Isa isa;
  std::string_view name;
};

// Best last: the table of a process is the last one present.
constexpr std::array<NamedIsa, 6> kIsas = {{{Isa::portable, "portable"},
                                            {Isa::neon, "neon"},
                                            {Isa::avx2, "avx2"},
                                            {Isa::avx512, "avx512"},
                                            {Isa::avx512_vnni, "avx512_vnni"},
                                            {Isa::amx, "amx"}}};

#ifdef __x86_64__
// __builtin_cpu_supports asks the operating system too (xgetbv). It knows no "f16c" in older compilers, hence cpuid.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx2_table() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

bool has_avx512_table() {
  return has_avx2_table() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool has_vnni_table() { return has_avx512_table() && __builtin_cpu_supports("avx512vnni"); }

// The tiles' registers (8 KiB of every thread's state) are the process' to ask for: Linux refuses without XCR0's bits
// or with an alternate signal stack that is too small for them. Threads started later inherit the permission.
bool permit_tiles() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool has_amx_table() {
  static const bool has = [] {
    constexpr unsigned kTileAndInt8 = 1U << 24 | 1U << 25;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return has_vnni_table() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 &&
           (edx & kTileAndInt8) == kTileAndInt8 && permit_tiles();
  }();
  return has;
}
#endif

std::string join(bool (*keep)(Isa)) {
  std::string names;
  for (const NamedIsa& entry : kIsas) {
    if (!keep(entry.isa)) continue;
    names += names.empty() ? "" : ", ";
    names += entry.name;
  }
  return names;
}

const KernelTable& best_table() {
  for (std::size_t i = kIsas.size(); i-- > 0;) {
    if (const KernelTable* table = kernel_table(kIsas[i].isa)) return *table;
  }
  return portable_table();
}

}  // namespace

const KernelTable* kernel_table(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return &portable_table();
#ifdef __x86_64__
    case Isa::avx2:
      return has_avx2_table() ? &avx2_table() : nullptr;
    case Isa::avx512:
      return has_avx512_table() ? &avx512_table() : nullptr;
    case Isa::avx512_vnni:
      return has_vnni_table() ? &avx512_vnni_table() : nullptr;
    case Isa::amx:
      return has_amx_table() ? &amx_table() : nullptr;
#endif
    default:
      return nullptr;
  }
}

std::string_view name_of(Isa isa) {
  for (const NamedIsa& entry : kIsas) {
    if (entry.isa == isa) return entry.name;
  }
  return "unknown";
}

const KernelTable& choose_kernels(std::string_view name) {
  if (name.empty()) return best_table();
  const std::string present = join([](Isa isa) { return kernel_table(isa) != nullptr; });
  const std::string hint = fmt::format("unset OUTRIDER_ISA to take the best one, {}", name_of(best_table().isa));
  for (const NamedIsa& entry : kIsas) {
    if (entry.name != name) continue;
    if (const KernelTable* table = kernel_table(entry.isa)) return *table;
    throw Error(
        ErrorKind::usage,
        fmt::format("OUTRIDER_ISA names {}, which this build or processor lacks; available here: {}", name, present),
        hint);
  }
  throw Error(ErrorKind::usage,
              fmt::format("OUTRIDER_ISA is \"{}\", which is no instruction set of ours ({}); available here: {}", name,
                          join([](Isa) { return true; }), present),
              hint);
}

const KernelTable& kernels() {
  static const KernelTable& table = [&]() -> const KernelTable& {
    const char* name = std::getenv("OUTRIDER_ISA");
    return choose_kernels(name == nullptr ? std::string_view{} : std::string_view{name});
  }();
  return table;
}

}  // namespace outrider
