#include "cli/option_layers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>

#include "base/error.h"
#include "base/text_file.h"
#include "cli/nearest_name.h"
#include "cli/toml.h"

namespace outrider {
namespace {

// These decide how options are read, so no layer below the command line may set them.
bool is_command_line_only(const std::string& name) { return name == "help" || name == "version" || name == "config"; }

std::vector<CLI::App*> verbs_of(const CLI::App& app) {
  return const_cast<CLI::App&>(app).get_subcommands([](CLI::App*) { return true; });
}

// Keys may spell their dashes as underscores.
std::string flag_name(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

// The verb of a section: [run], [generate] (an alias), [models.list]; the program for the top. Null: there is none.
const CLI::App* app_of(const CLI::App& program, const std::vector<std::string>& section) {
  const CLI::App* app = &program;
  for (const std::string& name : section) {
    const std::vector<CLI::App*> verbs = verbs_of(*app);
    const auto verb = std::find_if(verbs.begin(), verbs.end(), [&](CLI::App* each) { return each->check_name(name); });
    if (verb == verbs.end()) return nullptr;
    app = *verb;
  }
  return app;
}

std::string joined(const std::vector<std::string>& parts) { return fmt::format("{}", fmt::join(parts, ".")); }

void check_section(const std::vector<std::string>& section, const CLI::App& program, const std::string& file) {
  if (app_of(program, section) != nullptr) return;
  std::vector<std::string> known;
  for (const CLI::App* verb : verbs_of(program)) {
    known.push_back(verb->get_name());
    for (const CLI::App* part : verbs_of(*verb)) known.push_back(verb->get_name() + "." + part->get_name());
  }
  const std::string nearest = nearest_name(joined(section), known);
  throw Error(ErrorKind::usage, fmt::format("{}: unknown section [{}]", file, joined(section)),
              nearest.empty() ? "sections are named after verbs" : fmt::format("did you mean [{}]?", nearest));
}

void add_flags_below(const CLI::App& app, std::vector<std::string>& known) {
  for (const std::string& flag : long_flags(app))
    if (!is_command_line_only(flag.substr(2))) known.push_back(flag.substr(2));
  for (const CLI::App* part : verbs_of(app)) add_flags_below(*part, known);
}

// A key of the top may be a flag of any verb; one of a section, of that verb or of all.
void check_key(const TomlEntry& entry, const CLI::App& program, const std::string& file) {
  std::vector<std::string> known = long_flags(program);
  for (std::string& flag : known) flag.erase(0, 2);
  std::erase_if(known, is_command_line_only);
  add_flags_below(*app_of(program, entry.section), known);
  if (std::find(known.begin(), known.end(), flag_name(entry.key)) != known.end()) return;
  const std::string nearest = nearest_name(flag_name(entry.key), known);
  const std::string section = entry.section.empty() ? "" : fmt::format(" in [{}]", joined(entry.section));
  throw Error(ErrorKind::usage, fmt::format("{}: line {}: unknown key {}{}", file, entry.line, entry.key, section),
              nearest.empty() ? "keys are flag names without the dashes" : fmt::format("did you mean {}?", nearest));
}

bool is_within(const CLI::App& verb, const CLI::App* section) {
  for (const CLI::App* app = &verb; app != nullptr; app = app->get_parent())
    if (app == section) return true;
  return false;
}

// Options that a layer below the command line filled.
std::set<const CLI::Option*>& filled_options() {
  static std::set<const CLI::Option*> options;
  return options;
}

void set_option(CLI::Option& option, const std::vector<std::string>& values, const std::string& origin) {
  filled_options().insert(&option);
  try {
    for (const std::string& value : values) option.add_result(value);
    if (!values.empty()) option.run_callback();
  } catch (const CLI::Error& fault) {
    throw Error(ErrorKind::usage, fmt::format("{}: {}", origin, fault.what()),
                "the value is that of the flag, see --help of the verb");
  }
}

void fill(CLI::App& app, const FileValues& file_values, const std::string& file) {
  for (CLI::Option* option : app.get_options()) {
    if (option->count() > 0) continue;
    for (const std::string& name : option->get_lnames()) {
      if (is_command_line_only(name)) continue;
      const std::string variable = environment_name(name);
      if (const char* value = std::getenv(variable.c_str()); value != nullptr && *value != '\0') {
        set_option(*option, {value}, variable);
        break;
      }
      if (const auto entry = file_values.find(name); entry != file_values.end()) {
        set_option(*option, entry->second, fmt::format("{}: {}", file, name));
        break;
      }
    }
  }
}

}  // namespace

bool is_named(const CLI::Option& option) { return option.count() > 0 && !filled_options().contains(&option); }
void named_by_hand(const CLI::Option& option) { filled_options().erase(&option); }

std::string environment_name(const std::string& flag) {
  std::string name = "OUTRIDER_";
  for (const char c : flag.substr(std::min(flag.find_first_not_of('-'), flag.size())))
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::vector<std::string> long_flags(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  return flags;
}

FileValues read_config(const CLI::App& program, const CLI::App& verb, const std::string& config) {
  if (config.empty()) return {};
  std::string text;
  try {
    text = read_text_file(config);
  } catch (const Error& fault) {  // a bad argument, not a bad model
    throw Error(ErrorKind::usage, fmt::format("--config: {}", fault.what()), fault.hint());
  }
  const TomlFile file = read_toml(text, config);
  for (const std::vector<std::string>& section : file.sections) check_section(section, program, config);
  // The deeper section wins, whatever the order of the file.
  std::map<std::string, std::pair<std::size_t, const TomlEntry*>> chosen;
  std::set<std::pair<const CLI::App*, std::string>> seen;
  for (const TomlEntry& entry : file.entries) {
    check_key(entry, program, config);
    const CLI::App* app = app_of(program, entry.section);
    const std::string name = flag_name(entry.key);
    if (!seen.insert({app, name}).second)
      throw Error(ErrorKind::usage, fmt::format("{}: line {}: {} is set twice", config, entry.line, entry.key),
                  "keep one of the lines");
    if (!is_within(verb, app)) continue;
    auto& [depth, winner] = chosen[name];
    if (winner != nullptr && depth > entry.section.size()) continue;
    depth = entry.section.size();
    winner = &entry;
  }
  FileValues values;
  for (const auto& [name, choice] : chosen) values[name] = choice.second->values;
  return values;
}

void apply_option_layers(CLI::App& program, CLI::App& verb, const FileValues& values, const std::string& config) {
  fill(program, values, config);
  if (&verb != &program) fill(verb, values, config);
}

}  // namespace outrider
