// Where option values come from (serving.md 1.1): flag > environment OUTRIDER_<FLAG> > --config FILE (TOML) > what the
// verb falls back to (generation_config.json, built-in values).
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace outrider {

// Fills the options of `program` and `verb` that the command line left alone from the environment and from `config`
// (empty: none). Keys of the file stand at its top or in a section named after the verb, which wins. Errors (usage): an
// unknown key, with the nearest one; a value that does not fit, naming where it came from. (data): an unreadable file.
void apply_option_layers(CLI::App& program, CLI::App& verb, const std::string& config);

// "--max-tokens" -> "OUTRIDER_MAX_TOKENS".
std::string environment_name(const std::string& flag);

// All long flag names ("--temp") of an app.
std::vector<std::string> long_flags(const CLI::App& app);

}  // namespace outrider
