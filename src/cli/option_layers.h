// Where option values come from (serving.md 1.1): flag > environment OUTRIDER_<FLAG> > --config FILE (TOML) > what the
// verb falls back to (generation_config.json, built-in values).
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

namespace outrider {

// Values of a configuration file that concern one verb, by flag name without the leading dashes.
using FileValues = std::map<std::string, std::vector<std::string>>;

// Reads `config` (empty: none). Keys of the file stand at its top or in a section named after the verb, its alias or
// its full path ([models.list]); the deeper one wins. Errors (usage): a file that cannot be read, an unknown section or
// key with the nearest one.
FileValues read_config(const CLI::App& program, const CLI::App& verb, const std::string& config);
// Fills the options of `program` and `verb` that the command line left alone from the environment and from `values`.
// Error (usage): a value that does not fit, naming where it came from.
void apply_option_layers(CLI::App& program, CLI::App& verb, const FileValues& values, const std::string& config);

// Whether the user named this option for this run: on the command line, or by hand since (named_by_hand()). A value of
// the environment or a file is a habit: where it has nothing to act on it counts for nothing, where a named one is an
// error. One thread.
bool is_named(const CLI::Option& option);
void named_by_hand(const CLI::Option& option);

// "--max-tokens" -> "OUTRIDER_MAX_TOKENS".
std::string environment_name(const std::string& flag);

// All long flag names ("--temp") of an app.
std::vector<std::string> long_flags(const CLI::App& app);

}  // namespace outrider
