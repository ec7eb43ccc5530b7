// The flags of speculation (serving.md 1.5 and 3), shared by run and chat; --mtp is one of ReadingFlags.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/engine.h"

namespace outrider {

class DraftFlags {
 public:
  void define(CLI::App& verb);
  void apply(LoadOptions& options) const;

 private:
  std::string text_ = "on";
  std::int64_t tokens_ = 3;
  std::optional<std::int64_t> vocabulary_;
};

}  // namespace outrider
