// The flags of speculation (serving.md 1.5 and 3), shared by run, chat and fit; --mtp is one of ReadingFlags.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace outrider {

class DraftFlags {
 public:
  void define(CLI::App& verb);
  // Sets the drafts of `options`, whose reading is set. `of_answers`: the verb's other flags of drafts, as they were
  // given ("--spec-rule ratio"). Error (usage) that names both: a flag that another one leaves nothing to act on.
  void apply(LoadOptions& options, const std::vector<std::string>& of_answers) const;

 private:
  void refuse_idle(const LoadOptions& options, std::vector<std::string> of_answers) const;

  std::string text_;  // empty: on
  std::optional<std::int64_t> tokens_, vocabulary_;
};

}  // namespace outrider
