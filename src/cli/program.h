// The command line as a whole: global flags, the list of verbs, the layers of their options.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/command_words.h"
#include "cli/verb.h"

namespace outrider {

class Program {
 public:
  Program();
  // The exit code; failures are exceptions (Error, StdoutClosed).
  int run(int argc, char** argv);
  // How failures are to be told: as far as it is known when run() throws.
  OutputForm form() const { return options_.form; }

 private:
  void define_global_flags();
  void apply_global_flags();
  bool parse(const CommandWords& given);
  OutputForm early_form(const CommandWords& given) const;
  OutputForm final_form(const CommandWords& given) const;
  void read_early_form(const CommandWords& given, const std::string& config);
  int run_help(const std::vector<std::string>& more);
  void write_help(const std::string& text) const;
  void write_version() const;
  [[noreturn]] void refuse_name(const std::string& word, const CLI::App& app) const;
  [[noreturn]] void refuse_verb(const std::vector<std::string>& words) const;
  [[noreturn]] void refuse_leftover(const std::vector<std::string>& leftover, const CLI::App& verb) const;

  struct GlobalFlags {
    std::string log_level = "warning", log_format = "text", memory_budget, panel_file = "auto", config;
    bool json = false, jsonl = false, trust_remote_code = false;
  };
  CLI::App program_;
  GlobalFlags flags_;
  GlobalOptions options_;
  std::vector<std::unique_ptr<Verb>> verbs_;
  std::vector<CLI::App*> apps_;  // of verbs_
  CLI::App* help_ = nullptr;
  CLI::Option* memory_budget_ = nullptr;
  std::string help_verb_;
};

}  // namespace outrider
