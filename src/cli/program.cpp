#include "cli/program.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/log.h"
#include "cli/nearest_name.h"
#include "cli/option_layers.h"
#include "cli/option_values.h"
#include "kernels/kernel_table.h"

namespace outrider {
namespace {

constexpr int kUsage = static_cast<int>(ErrorKind::usage);

std::vector<CLI::App*> subcommands(CLI::App& app) {
  return app.get_subcommands([](CLI::App*) { return true; });
}

// The verb that was named, down to its last part ("models list").
CLI::App* named_verb(CLI::App& program) {
  CLI::App* app = &program;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

std::string full_name(const CLI::App& verb) {
  const CLI::App* parent = verb.get_parent();
  return parent == nullptr ? verb.get_name() : full_name(*parent) + " " + verb.get_name();
}

LogLevel log_level_from(const std::string& name) {
  if (name == "debug") return LogLevel::debug;
  if (name == "info") return LogLevel::info;
  return name == "error" ? LogLevel::error : LogLevel::warning;
}

}  // namespace

Program::Program() : program_("Runs language models on this machine.", "outrider") {
  program_.allow_extras();
  program_.require_subcommand(0, 1);  // one verb: a second word that spells a verb is an argument, such as a prompt
  program_.set_version_flag("--version", "outrider " OUTRIDER_VERSION);
  define_global_flags();
  for (auto make : {make_run_verb, make_chat_verb, make_convert_verb, make_models_verb, make_tokenize_verb,
                    make_eval_verb, make_logits_verb, make_fit_verb, make_bench_verb}) {
    CLI::App* app = verbs_.emplace_back(make())->define(program_);
    for (CLI::App* part : subcommands(*app)) part->fallthrough()->allow_extras();
    app->fallthrough()->allow_extras();
    apps_.push_back(app);
  }
  program_.add_subcommand("version", "the version")->fallthrough()->allow_extras();
  help_ = program_.add_subcommand("help", "help on a verb")->fallthrough();
  help_->add_option("VERB", help_verb_, "the verb, in one or two words");
  help_->allow_extras();
}

void Program::define_global_flags() {
  program_.add_option("--log-level", flags_.log_level, "debug, info, warning or error (warning)")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  program_.add_option("--log-format", flags_.log_format, "text, or json lines, on stderr (text)")
      ->check(CLI::IsMember({"text", "json"}));
  program_.add_flag("--quiet", options_.quiet, "no banner, progress, warnings or timings on stderr");
  add_whole(program_, "--threads", options_.threads, "threads in all (physical cores)", {1, 4096});
  memory_budget_ = program_.add_option("--memory-budget", flags_.memory_budget,
                                       "bytes, or a number with MiB or GiB (75 % of memory)");
  program_
      .add_option("--panel-file", flags_.panel_file,
                  "keep packed weights beside the model for the next start: auto (from 256 MiB on), always, off (auto)")
      ->check(CLI::IsMember({"auto", "always", "off"}));
  program_.add_option("--config", flags_.config, "TOML file of flag values; its section [VERB] wins over its top");
  program_.add_flag("--json", flags_.json, "one JSON document on stdout");
  program_.add_flag("--jsonl", flags_.jsonl, "one JSON document per event on stdout");
  program_.add_flag("--trust-remote-code", flags_.trust_remote_code,
                    "accepted for the sake of mlx_lm's users; no model code is ever run");
}

void Program::apply_global_flags() {
  set_log(options_.quiet ? LogLevel::error : log_level_from(flags_.log_level),
          flags_.log_format == "json" ? LogFormat::json : LogFormat::text);
  if (program_.get_option("--config")->count() > 0 && flags_.config.empty())
    throw Error(ErrorKind::usage, "--config is empty", "name a TOML file, or leave it out");
  options_.panels = flags_.panel_file == "off"      ? PanelUse::off
                    : flags_.panel_file == "always" ? PanelUse::always
                                                    : PanelUse::automatic;
  if (memory_budget_->count() > 0) options_.memory_budget_bytes = bytes_from(flags_.memory_budget);
  if (flags_.trust_remote_code) log(LogLevel::warning, "--trust-remote-code is ignored: no model code is ever run");
}

// False: help or the version was asked for and given.
bool Program::parse(const CommandWords& given) {
  std::vector<std::string> words(given.words.rbegin(), given.words.rend());  // the parser takes the last one first
  try {
    program_.parse(std::move(words));
    return true;
  } catch (const CLI::CallForHelp&) {
    write_help(program_.help());
  } catch (const CLI::CallForVersion&) {
    write_version();
  } catch (const CLI::ParseError& fault) {
    throw Error(ErrorKind::usage, fault.what(), fmt::format("see {} --help", full_name(*named_verb(program_))));
  }
  return false;
}

// How failures are told until all layers are in place: the command line, else the environment, else the file.
OutputForm Program::early_form(const CommandWords& given) const {
  if (given.form) return *given.form;
  const auto from_environment = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' && truth_of(value).value_or(false);
  };
  if (from_environment("OUTRIDER_JSONL")) return OutputForm::jsonl;
  if (from_environment("OUTRIDER_JSON")) return OutputForm::json;
  return OutputForm::human;
}

// --json or --jsonl of the command line leave no say to the other one of a lower layer.
OutputForm Program::final_form(const CommandWords& given) const {
  if (given.form) return *given.form;
  return flags_.jsonl ? OutputForm::jsonl : flags_.json ? OutputForm::json : OutputForm::human;
}

void Program::write_help(const std::string& text) const {
  if (options_.form == OutputForm::human)
    write_stdout(text);
  else
    write_json({{"help", text}});
}

void Program::write_version() const {
  if (options_.form == OutputForm::human)
    write_stdout("outrider " OUTRIDER_VERSION "\n");
  else
    write_json({{"version", OUTRIDER_VERSION}});
}

int Program::run(int argc, char** argv) {
  const CommandWords given = command_words(program_, argc, argv);
  options_.form = early_form(given);
  const char* config = std::getenv("OUTRIDER_CONFIG");
  const std::string early_config = !given.config.empty() ? given.config : config != nullptr ? config : "";
  read_early_form(given, early_config);
  if (!parse(given)) return 0;
  CLI::App* named = named_verb(program_);
  std::vector<std::string> leftover = program_.remaining(true);
  const std::vector<std::string> extra = fill_arguments(*named, given.after_separator);
  if (named == help_) {
    leftover.insert(leftover.end(), extra.begin(), extra.end());
    return run_help(leftover);
  }
  if (!leftover.empty()) {
    if (named == &program_) refuse_verb(leftover);
    if (named->get_name() != "get" && named->get_name() != "rm") refuse_leftover(leftover, *named);
  }
  if (!extra.empty())
    throw Error(ErrorKind::usage, fmt::format("unexpected argument \"{}\"", extra.front()),
                fmt::format("see {} --help", full_name(*named)));
  apply_option_layers(program_, *named, read_config(program_, *named, early_config), early_config);
  options_.form = final_form(given);
  apply_global_flags();
  for (std::size_t i = 0; i < apps_.size(); ++i)
    if (apps_[i]->parsed()) {
      kernels();  // every verb refuses an OUTRIDER_ISA that is not there
      return verbs_[i]->run(options_);
    }
  if (named->get_name() == "version") {
    write_version();
    return 0;
  }
  if (options_.form != OutputForm::human) throw Error(ErrorKind::usage, "no verb is named", "see outrider --help");
  std::fputs(program_.help().c_str(), stderr);
  return kUsage;
}

// The file may ask for JSON; what is wrong with it is said later, once the command line is understood.
void Program::read_early_form(const CommandWords& given, const std::string& config) {
  if (given.form || options_.form != OutputForm::human || config.empty()) return;
  try {
    const FileValues values = read_config(program_, program_, config);
    const auto asks_for = [&](const char* name) {
      const auto entry = values.find(name);
      return entry != values.end() && !entry->second.empty() && truth_of(entry->second.back()).value_or(false);
    };
    if (asks_for("jsonl"))
      options_.form = OutputForm::jsonl;
    else if (asks_for("json"))
      options_.form = OutputForm::json;
  } catch (const Error&) {
  }
}

// help, help run, help models info
int Program::run_help(const std::vector<std::string>& more) {
  std::vector<std::string> words = more;
  if (!help_verb_.empty()) words.insert(words.begin(), help_verb_);
  const CLI::App* app = &program_;
  std::string prefix;
  for (const std::string& word : words) {
    if (word.size() > 1 && word[0] == '-') refuse_leftover(words, *help_);
    const std::vector<CLI::App*> verbs = subcommands(const_cast<CLI::App&>(*app));
    const auto verb = std::find_if(verbs.begin(), verbs.end(), [&](CLI::App* each) { return each->check_name(word); });
    if (verb == verbs.end()) refuse_name(word, *app);
    prefix = full_name(*app);
    app = *verb;
  }
  write_help(app == &program_ ? program_.help() : app->help(prefix));
  return 0;
}

void Program::refuse_verb(const std::vector<std::string>& words) const {
  if (words.front().size() > 1 && words.front()[0] == '-') refuse_leftover(words, program_);
  refuse_name(words.front(), program_);
}

void Program::refuse_name(const std::string& word, const CLI::App& app) const {
  std::vector<std::string> known;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(verb->get_name());
    for (const std::string& alias : verb->get_aliases()) known.push_back(alias);
  }
  const std::string nearest = nearest_name(word, known);
  throw Error(ErrorKind::usage, fmt::format("unknown verb \"{}\"", word),
              nearest.empty() ? "see outrider --help" : fmt::format("did you mean {}?", nearest));
}

// What was left over: an unknown flag, with the nearest name, or an argument too many.
void Program::refuse_leftover(const std::vector<std::string>& leftover, const CLI::App& verb) const {
  const std::string see_help = fmt::format("see {} --help", full_name(verb));
  const auto flag = std::find_if(leftover.begin(), leftover.end(),
                                 [](const std::string& word) { return word.size() > 1 && word[0] == '-'; });
  if (flag == leftover.end())
    throw Error(ErrorKind::usage, fmt::format("unexpected argument \"{}\"", leftover.front()), see_help);
  const std::string name = flag->substr(0, flag->find('='));
  if (name == "--pipeline")
    throw Error(ErrorKind::usage, "--pipeline is not supported: a model runs on one machine", "leave it out");
  std::vector<std::string> known = long_flags(verb);
  for (const std::string& global : long_flags(program_)) known.push_back(global);
  const std::string nearest = nearest_name(name, known);
  throw Error(ErrorKind::usage, fmt::format("unknown flag {}", name),
              nearest.empty() ? see_help : fmt::format("did you mean {}?", nearest));
}

}  // namespace outrider
