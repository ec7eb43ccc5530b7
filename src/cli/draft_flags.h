// The flags of speculation (serving.md 1.5 and 3), shared by run, chat and fit; --mtp is one of ReadingFlags.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/reading_flags.h"
#include "engine/engine.h"

namespace outrider {

class DraftFlags {
 public:
  void define(CLI::App& verb);
  // Sets the drafts of `options`, whose reading is set, by `reading`. `of_answers`: the verb's other flags of drafts,
  // as the user named them ("--spec-rule ratio"). Error (usage) that names both: a named flag that another value leaves
  // nothing to act on.
  void apply(LoadOptions& options, const ReadingFlags& reading, const std::vector<std::string>& of_answers) const;

 private:
  void refuse_idle(const LoadOptions& options, const ReadingFlags& reading, std::vector<std::string> of_answers) const;

  CLI::Option *text_flag_ = nullptr, *tokens_flag_ = nullptr, *vocabulary_flag_ = nullptr;
  std::string text_;  // empty: on
  std::optional<std::int64_t> tokens_, vocabulary_;
};

}  // namespace outrider
