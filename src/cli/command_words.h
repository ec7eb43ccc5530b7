// The words of the command line before they are parsed: what stands behind "--", and how failures are to be told.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/output.h"

namespace outrider {

struct CommandWords {
  std::vector<std::string> words;            // up to "--"; "--flag=" became "--flag" and ""
  std::vector<std::string> after_separator;  // arguments, whatever they begin with
  std::optional<OutputForm> form;            // of --json and --jsonl, if they are there
  std::string config;                        // of --config
};

// `program` tells which flags take the next word as their value, so that "--" or "--json" may be a value.
CommandWords command_words(const CLI::App& program, int argc, char** argv);

// Gives `words` to the arguments of `verb` that have none yet, in order; returns what no argument takes.
std::vector<std::string> fill_arguments(CLI::App& verb, const std::vector<std::string>& words);

// "true", "off", "1", ...: as flags read their values. Nothing for other words.
std::optional<bool> truth_of(std::string word);

}  // namespace outrider
