// --prompt-cache-bytes (serving.md section 6), shared by run, chat and fit.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "engine/engine.h"

namespace outrider {

class PromptCacheFlag {
 public:
  // What is kept without the flag: the engine's own share of the budget, or nothing where one answer is all there is.
  enum class Default : std::uint8_t { share, nothing };
  explicit PromptCacheFlag(Default without) : without_(without) {}

  void define(CLI::App& verb);
  // Error (usage) when the value is no size.
  void apply(LoadOptions& options) const;

 private:
  Default without_;
  std::string bytes_;
};

}  // namespace outrider
