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
  // Whether the user named a head to use: --mtp on or PATH.
  bool names_head() const;
  // The flags that were given, as words of a command line.
  std::vector<std::string> words() const;

 private:
  static constexpr const char* kAuto = "auto";  // as the files say

  CLI::Option *layout_flag_ = nullptr, *mtp_flag_ = nullptr, *hidden_flag_ = nullptr;
  std::string layout_ = kAuto, mtp_ = kAuto, mtp_hidden_ = kAuto;
};

}  // namespace outrider
