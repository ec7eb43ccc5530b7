#include "cli/program.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/log.h"
#include "cli/nearest_name.h"
#include "cli/option_layers.h"

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
                    make_eval_verb, make_logits_verb, make_fit_verb}) {
    CLI::App* app = verbs_.emplace_back(make())->define(program_);
    for (CLI::App* part : subcommands(*app)) part->fallthrough()->allow_extras();
    app->fallthrough()->allow_extras();
    apps_.push_back(app);
  }
  program_.add_subcommand("version", "the version");
  help_ = program_.add_subcommand("help", "help on a verb");
  help_->add_option("VERB", help_verb_, "the verb");
  help_->allow_extras();
}

void Program::define_global_flags() {
  program_.add_option("--log-level", flags_.log_level, "debug, info, warning or error (warning)")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  program_.add_option("--log-format", flags_.log_format, "text, or json lines, on stderr (text)")
      ->check(CLI::IsMember({"text", "json"}));
  program_.add_flag("--quiet", options_.quiet, "no banner, progress, warnings or timings on stderr");
  program_.add_option("--threads", options_.threads, "threads in all (physical cores)")->check(CLI::Range(1, 4096));
  program_.add_option("--memory-budget", flags_.memory_budget, "bytes, or a number with MiB or GiB (75 % of memory)");
  program_.add_option("--config", flags_.config, "TOML file of flag values; its section [VERB] wins over its top");
  program_.add_flag("--json", flags_.json, "one JSON document on stdout");
  program_.add_flag("--jsonl", flags_.jsonl, "one JSON document per event on stdout");
  program_.add_flag("--trust-remote-code", flags_.trust_remote_code,
                    "accepted for the sake of mlx_lm's users; no model code is ever run");
}

void Program::apply_global_flags() {
  set_log(options_.quiet ? LogLevel::error : log_level_from(flags_.log_level),
          flags_.log_format == "json" ? LogFormat::json : LogFormat::text);
  options_.form = flags_.jsonl ? OutputForm::jsonl : flags_.json ? OutputForm::json : OutputForm::human;
  if (!flags_.memory_budget.empty()) options_.memory_budget_bytes = bytes_from(flags_.memory_budget);
  if (flags_.trust_remote_code) log(LogLevel::warning, "--trust-remote-code is ignored: no model code is ever run");
}

// False: help or the version was asked for and given.
bool Program::parse(int argc, char** argv) {
  try {
    program_.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    write_stdout(program_.help());
  } catch (const CLI::CallForVersion& version) {
    write_stdout(std::string(version.what()) + "\n");
  } catch (const CLI::ParseError& fault) {
    throw Error(ErrorKind::usage, fault.what(), fmt::format("see {} --help", full_name(*named_verb(program_))));
  }
  return false;
}

int Program::run(int argc, char** argv) {
  if (argc < 2) {
    std::fputs(program_.help().c_str(), stderr);
    return kUsage;
  }
  if (!parse(argc, argv)) return 0;
  CLI::App* named = named_verb(program_);
  if (const auto leftover = program_.remaining(true); !leftover.empty()) {
    if (named == &program_) refuse_verb(leftover);
    if (named->get_name() != "get" && named->get_name() != "rm") refuse_leftover(leftover, *named);
  }
  const char* config = std::getenv("OUTRIDER_CONFIG");
  if (flags_.config.empty() && config != nullptr) flags_.config = config;
  apply_option_layers(program_, *named, flags_.config);
  apply_global_flags();
  for (std::size_t i = 0; i < apps_.size(); ++i)
    if (apps_[i]->parsed()) return verbs_[i]->run(options_);
  return run_builtin(*named);
}

int Program::run_builtin(const CLI::App& named) {
  if (named.get_name() == "version") {
    write_stdout("outrider " OUTRIDER_VERSION "\n");
    return 0;
  }
  if (&named != help_) {  // global flags, but no verb
    std::fputs(program_.help().c_str(), stderr);
    return kUsage;
  }
  if (help_verb_.empty()) {
    write_stdout(program_.help());
    return 0;
  }
  for (const CLI::App* verb : subcommands(program_))
    if (verb->check_name(help_verb_)) {
      write_stdout(verb->help("outrider"));
      return 0;
    }
  refuse_verb({help_verb_});
}

void Program::refuse_verb(const std::vector<std::string>& words) const {
  if (words.front().size() > 1 && words.front()[0] == '-') refuse_leftover(words, program_);
  std::vector<std::string> known;
  for (const CLI::App* app : program_.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(app->get_name());
    for (const std::string& alias : app->get_aliases()) known.push_back(alias);
  }
  const std::string nearest = nearest_name(words.front(), known);
  throw Error(ErrorKind::usage, fmt::format("unknown verb \"{}\"", words.front()),
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
