#include "cli/option_layers.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <sstream>

#include "base/error.h"
#include "cli/nearest_name.h"
#include "weights/json_strict.h"

namespace outrider {
namespace {

// Values of the file by flag name without dashes.
using FileValues = std::map<std::string, std::vector<std::string>>;

// These decide how options are read, so no layer below the command line may set them.
bool is_command_line_only(const std::string& name) { return name == "help" || name == "version" || name == "config"; }

std::vector<CLI::App*> all_verbs(CLI::App& program) {
  std::vector<CLI::App*> apps = {&program};
  for (std::size_t i = 0; i < apps.size(); ++i)
    for (CLI::App* verb : apps[i]->get_subcommands([](CLI::App*) { return true; })) apps.push_back(verb);
  return apps;
}

void check_key(const CLI::ConfigItem& item, CLI::App& program, const std::string& file) {
  std::vector<std::string> known;
  for (const CLI::App* app : all_verbs(program))
    for (const std::string& flag : long_flags(*app)) known.push_back(flag.substr(2));
  if (std::find(known.begin(), known.end(), item.name) != known.end() && !is_command_line_only(item.name)) return;
  const std::string nearest = nearest_name(item.name, known);
  throw Error(ErrorKind::usage, fmt::format("{}: unknown key {}", file, item.fullname()),
              nearest.empty() ? "keys are flag names without the dashes" : fmt::format("did you mean {}?", nearest));
}

FileValues read_values(const std::string& file, CLI::App& program, const CLI::App& verb) {
  FileValues top, section;
  if (file.empty()) return top;
  std::istringstream text(read_text_file(file));
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(text);
  } catch (const CLI::Error& fault) {
    throw Error(ErrorKind::usage, fmt::format("{}: {}", file, fault.what()));
  }
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // section marks of the reader
    check_key(item, program, file);
    if (item.parents.empty())
      top[item.name] = item.inputs;
    else if (item.parents.size() == 1 && item.parents[0] == verb.get_name())
      section[item.name] = item.inputs;
  }
  for (auto& [name, inputs] : section) top[name] = std::move(inputs);
  return top;
}

void set_option(CLI::Option& option, const std::vector<std::string>& values, const std::string& origin) {
  try {
    for (const std::string& value : values) option.add_result(value);
    option.run_callback();
  } catch (const CLI::Error& fault) {
    throw Error(ErrorKind::usage, fmt::format("{}: {}", origin, fault.what()));
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

void apply_option_layers(CLI::App& program, CLI::App& verb, const std::string& config) {
  const FileValues values = read_values(config, program, verb);
  fill(program, values, config);
  if (&verb != &program) fill(verb, values, config);
}

}  // namespace outrider
