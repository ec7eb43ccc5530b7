#include "cli/command_words.h"

#include <set>

namespace outrider {
namespace {

std::vector<const CLI::App*> with_subcommands(const CLI::App& program) {
  std::vector<const CLI::App*> apps = {&program};
  for (std::size_t i = 0; i < apps.size(); ++i)
    for (const CLI::App* verb : apps[i]->get_subcommands([](const CLI::App*) { return true; })) apps.push_back(verb);
  return apps;
}

// "--temp", "-m": the flags that take a value.
std::set<std::string> valued_flags(const CLI::App& program) {
  std::set<std::string> flags;
  for (const CLI::App* app : with_subcommands(program))
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_items_expected_min() == 0) continue;
      for (const std::string& name : option->get_lnames()) flags.insert("--" + name);
      for (const std::string& name : option->get_snames()) flags.insert("-" + name);
    }
  return flags;
}

// --json, --jsonl=off and so on; a later word wins.
void note_form(const std::string& name, const std::string* value, std::optional<OutputForm>& form) {
  if (name != "--json" && name != "--jsonl") return;
  if (value == nullptr || truth_of(*value).value_or(true))
    form = name == "--json" ? OutputForm::json : OutputForm::jsonl;
  else if (!form)
    form = OutputForm::human;
}

}  // namespace

std::optional<bool> truth_of(std::string word) {
  try {
    return CLI::detail::to_flag_value(std::move(word)) > 0;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

CommandWords command_words(const CLI::App& program, int argc, char** argv) {
  const std::set<std::string> valued = valued_flags(program);
  CommandWords out;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") {
      out.after_separator.assign(argv + i + 1, argv + argc);
      break;
    }
    const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    const std::string name = word.substr(0, equals);
    std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    note_form(name, equals == std::string::npos ? nullptr : &value, out.form);
    if (!valued.contains(name)) {
      out.words.push_back(word);
      continue;
    }
    if (equals == std::string::npos) {
      out.words.push_back(word);
      if (i + 1 == argc) break;
      out.words.push_back(value = argv[++i]);
    } else if (value.empty()) {  // the parser would take the next word instead
      out.words.insert(out.words.end(), {name, value});
    } else {
      out.words.push_back(word);
    }
    if (name == "--config") out.config = value;
  }
  return out;
}

std::vector<std::string> fill_arguments(CLI::App& verb, const std::vector<std::string>& words) {
  auto word = words.begin();
  for (CLI::Option* option : verb.get_options()) {
    if (word == words.end()) break;
    if (!option->get_positional() || option->count() > 0) continue;
    option->add_result(*word++);
    option->run_callback();
  }
  return {word, words.end()};
}

}  // namespace outrider
