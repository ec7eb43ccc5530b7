// The flags that say how a checkpoint is read: --layout, --mtp, --mtp-hidden.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "weights/checkpoint_facts.h"

namespace outrider {

class ReadingFlags {
 public:
  void define(CLI::App& verb);
  // Without --mtp, for verbs that have a meaning of their own for it.
  void define_without_mtp(CLI::App& verb);
  // Error (usage): --mtp-hidden beside --mtp off.
  SourceOptions options() const;
  // The flags that were given, as words of a command line.
  std::vector<std::string> words() const;

 private:
  std::string layout_, mtp_ = "auto", mtp_hidden_;
};

}  // namespace outrider
