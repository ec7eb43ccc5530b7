#include "kernels/kernel_table.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace outrider {
namespace {

constexpr Isa kEvery[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::amx, Isa::neon};

std::string message_for(std::string_view name) {
  try {
    choose_kernels(name);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.hint(), testing::HasSubstr("unset OUTRIDER_ISA"));
    return error.what();
  }
  return "";
}

TEST(KernelTable, HasEveryKernelInEveryTableOfThisProcessor) {
  for (Isa isa : kEvery) {
    const KernelTable* table = kernel_table(isa);
    if (table == nullptr) {
      std::fprintf(stderr, "NOT TESTED: this processor or build has no %s\n", std::string(name_of(isa)).c_str());
      continue;
    }
    EXPECT_EQ(table->isa, isa);
    const void* const kernels[] = {
        (const void*)table->code_rows,    (const void*)table->product,      (const void*)table->dense_product,
        (const void*)table->unpack_row,   (const void*)table->rms_norm,     (const void*)table->silu_mul,
        (const void*)table->sigmoid_mul,  (const void*)table->add,          (const void*)table->scale,
        (const void*)table->rope_angles,  (const void*)table->rope_rotate,  (const void*)table->store_kv,
        (const void*)table->attend_chunk, (const void*)table->attend_merge, (const void*)table->attend_finish,
        (const void*)table->logp_tiles,   (const void*)table->conv_silu,    (const void*)table->l2_norm,
        (const void*)table->delta_gates,  (const void*)table->delta_steps,  (const void*)table->gated_norm,
        (const void*)table->argmax};
    EXPECT_THAT(kernels, testing::Each(testing::NotNull())) << name_of(isa);
  }
}

TEST(KernelTable, AlwaysHasThePortableOne) {
  ASSERT_NE(kernel_table(Isa::portable), nullptr);
  EXPECT_EQ(&choose_kernels("portable"), kernel_table(Isa::portable));
}

TEST(KernelTable, GivesEachPresentOneByNameAndRefusesTheOthersWithTheList) {
  for (Isa isa : kEvery) {
    const std::string name(name_of(isa));
    if (const KernelTable* table = kernel_table(isa)) {
      EXPECT_EQ(&choose_kernels(name), table);
      continue;
    }
    const std::string message = message_for(name);
    EXPECT_THAT(message, testing::HasSubstr("OUTRIDER_ISA names " + name));
    EXPECT_THAT(message, testing::HasSubstr("available here: portable"));
  }
}

TEST(KernelTable, RefusesANameThatIsNone) {
  const std::string message = message_for("avx3");
  EXPECT_THAT(message, testing::HasSubstr("\"avx3\""));
  EXPECT_THAT(message, testing::HasSubstr("portable, neon, avx2, avx512, avx512_vnni, amx"));
  EXPECT_NE(message_for("AVX2"), "");
  EXPECT_NE(message_for("avx"), "");
}

TEST(KernelTable, TakesTheBestOneUnasked) {
  const KernelTable& best = choose_kernels("");
  if (kernel_table(Isa::avx512) != nullptr) {
    EXPECT_GE(static_cast<int>(best.isa), static_cast<int>(Isa::avx512));
  } else if (kernel_table(Isa::avx2) != nullptr) {
    EXPECT_EQ(best.isa, Isa::avx2);
  }
}

TEST(KernelTable, IsChosenOnce) { EXPECT_EQ(&kernels(), &kernels()); }

}  // namespace
}  // namespace outrider
