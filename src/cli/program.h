// The command line as a whole: global flags, the list of verbs, the layers of their options.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/verb.h"

namespace outrider {

class Program {
 public:
  Program();
  // The exit code; failures are exceptions (Error, StdoutClosed).
  int run(int argc, char** argv);

 private:
  void define_global_flags();
  void apply_global_flags();
  bool parse(int argc, char** argv);
  int run_builtin(const CLI::App& named);
  [[noreturn]] void refuse_verb(const std::vector<std::string>& words) const;
  [[noreturn]] void refuse_leftover(const std::vector<std::string>& leftover, const CLI::App& verb) const;

  struct GlobalFlags {
    std::string log_level = "warning", log_format = "text", memory_budget, config;
    bool json = false, jsonl = false, trust_remote_code = false;
  };
  CLI::App program_;
  GlobalFlags flags_;
  GlobalOptions options_;
  std::vector<std::unique_ptr<Verb>> verbs_;
  std::vector<CLI::App*> apps_;  // of verbs_
  CLI::App* help_ = nullptr;
  std::string help_verb_;
};

}  // namespace outrider
