// outrider chat MODEL: a conversation in the terminal.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <utility>

#include "cli/answer_report.h"
#include "cli/conversation.h"
#include "cli/draft_flags.h"
#include "cli/generation_flags.h"
#include "cli/interrupts.h"
#include "cli/line_editor.h"
#include "cli/option_values.h"
#include "cli/prompt_cache_flag.h"
#include "cli/reading_flags.h"
#include "cli/verb.h"

namespace outrider {
namespace {

constexpr const char* kHelp =
    "/help               this list\n"
    "/clear              forget the conversation\n"
    "/system [TEXT]      set or show the system message\n"
    "/set NAME=VALUE     change a flag: temp, top-p, seed, max-tokens, ...\n"
    "/save FILE          write the conversation\n"
    "/load FILE          read one back\n"
    "/undo               take the last question and its answer back\n"
    "/retry              answer the last question again\n"
    "/stats              times and memory of the last answer\n"
    "/quit               leave (Ctrl-D too)\n"
    "\"\"\"                 opens and closes input of several lines; Ctrl-C ends an answer\n";

class ChatVerb : public Verb {
 public:
  CLI::App* define(CLI::App& program) override {
    CLI::App* verb = program.add_subcommand("chat", "a conversation in the terminal");
    verb->add_option("model,--model", model_, "directory, .gguf file, or local model");
    verb->add_option("--system-prompt", system_prompt_, "the system message");
    add_whole(*verb, "--ctx", context_tokens_, "context to plan memory for (the model's, or what fits)", kFromOne);
    add_whole(*verb, "--prefill-step-size", prefill_step_, "most prompt tokens of one step (512)", kFromOne);
    verb->add_option("--precision", precision_, "packed, or f32: the slow reference (packed)");
    verb->add_flag("--no-history", no_history_, "keep no history of what was typed");
    reading_.define(*verb);
    drafts_.define(*verb);
    prompt_cache_.define(*verb);
    flags_.define(*verb);
    return verb;
  }

  int run(const GlobalOptions& global) override {
    LoadOptions options = load_options(global, model_);
    options.precision = precision_from(precision_);
    options.context_tokens = context_tokens_;
    options.prefill_step_tokens = prefill_step_;
    options.max_rows = 1;
    options.reading = reading_.options();
    drafts_.apply(options, reading_, flags_.of_drafts());
    prompt_cache_.apply(options);
    engine_ = load_with_progress(global, options);
    if (!engine_->facts().has_chat_template)
      throw Error(ErrorKind::data, fmt::format("{} has no chat template", engine_->facts().path),
                  "use outrider run with a plain prompt");
    global_ = &global;
    conversation_.set_system(system_prompt_);
    LineEditor editor(no_history_ ? std::filesystem::path() : default_history_file());
    if (!global.quiet)
      std::fprintf(stderr, "%s, context %lld tokens; /help lists the commands\n", engine_->facts().path.c_str(),
                   static_cast<long long>(engine_->facts().context_tokens));
    while (turn(editor)) {
    }
    if (global.form == OutputForm::json) write_json({{"answers", std::move(answers_)}});
    return interrupted();
  }

 private:
  // One line of the user and what it asks for; false: leave.
  bool turn(LineEditor& editor) {
    set_second_signal(SecondSignal::exits_cleanly);
    LineRead line = editor.read("> ");
    if (line.kind == LineRead::Kind::line && line.text.starts_with("\"\"\""))
      line = read_block(editor, line.text.substr(3));
    if (line.kind == LineRead::Kind::interrupt) {
      if (interrupted() == 143) return false;
      clear_interrupt();
      return true;
    }
    if (line.kind == LineRead::Kind::end) return false;
    set_second_signal(SecondSignal::exits_with_signal);
    try {
      if (line.text.starts_with("/")) return command(line.text);
      if (line.text.find_first_not_of(" \t\n") != std::string::npos) ask(std::move(line.text));
    } catch (const Error& error) {  // a fault of one turn does not end the conversation
      if (error.kind() == ErrorKind::interrupted) return false;
      std::fprintf(stderr, "%s%s%s\n", error.what(), error.hint().empty() ? "" : "; ", error.hint().c_str());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    return true;
  }

  // Lines up to one that ends in """.
  static LineRead read_block(LineEditor& editor, std::string first) {
    std::string text = std::move(first);
    while (!text.ends_with("\"\"\"")) {
      LineRead next = editor.read(". ");
      if (next.kind == LineRead::Kind::interrupt) return next;
      if (next.kind == LineRead::Kind::end) return {LineRead::Kind::line, text};
      text += (text.empty() ? "" : "\n") + next.text;
    }
    text.resize(text.size() - 3);
    if (text.ends_with("\n")) text.pop_back();
    return {LineRead::Kind::line, std::move(text)};
  }

  // "/save  a b " is {"/save", "a b"}.
  static std::pair<std::string, std::string> command_words(const std::string& line) {
    constexpr const char* kBlank = " \t";
    const std::size_t end = std::min(line.find_first_of(kBlank), line.size());
    const std::size_t first = line.find_first_not_of(kBlank, end);
    if (first == std::string::npos) return {line.substr(0, end), ""};
    return {line.substr(0, end), line.substr(first, line.find_last_not_of(kBlank) + 1 - first)};
  }

  bool command(const std::string& line) {
    const auto [name, argument] = command_words(line);
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/help")
      std::fputs(kHelp, stderr);
    else if (name == "/clear")
      clear();
    else if (name == "/system")
      system_message(argument);
    else if (name == "/set")
      set(argument);
    else if (name == "/save")
      save(file_argument(name, argument));
    else if (name == "/load")
      load(file_argument(name, argument));
    else if (name == "/undo")
      undo();
    else if (name == "/retry")
      ask(std::nullopt);
    else if (name == "/stats")
      stats();
    else
      throw Error(ErrorKind::usage, fmt::format("unknown command {}", name), "/help lists the commands");
    return true;
  }

  void system_message(const std::string& text) {
    if (!text.empty()) conversation_.set_system(text);
    std::fprintf(stderr, "system: %s\n", conversation_.system().empty() ? "(none)" : conversation_.system().c_str());
  }

  void set(const std::string& argument) {
    const std::size_t equals = argument.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorKind::usage, "/set needs NAME=VALUE", "for example /set temp=0.7");
    const std::string name = argument.substr(0, equals), value = argument.substr(equals + 1);
    flags_.set(name, value, [this] { check_settings(); });
    confirm(fmt::format("{} is {}", name, value));
  }

  // The engine's own checks: a request that is taken back before its first step.
  void check_settings() {
    const auto id = engine_->submit(flags_.request({0}, engine_->facts()));
    if (!id) throw error_from(id.error());
    engine_->cancel(*id);
    while (engine_->step([](const Event&) {})) {
    }
  }

  // What a command did, in one line.
  void confirm(const std::string& line) const {
    if (!global_->quiet) std::fprintf(stderr, "%s\n", line.c_str());
  }

  // A file name; "~" and "~/..." begin at the home.
  static std::string file_argument(const std::string& name, const std::string& argument) {
    if (argument.empty())
      throw Error(ErrorKind::usage, fmt::format("{} needs a file name", name), "for example /save talk.json");
    const char* home = std::getenv("HOME");
    const bool at_home = argument == "~" || argument.starts_with("~/");
    return at_home && home != nullptr ? home + argument.substr(1) : argument;
  }

  void save(const std::string& file) const {
    conversation_.save(file);
    confirm(fmt::format("saved {} to {}", counted(conversation_.messages().size(), "message"), file));
  }

  void load(const std::string& file) {
    conversation_.load(file);
    confirm(fmt::format("loaded {} from {}", counted(conversation_.messages().size(), "message"), file));
  }

  void clear() {
    conversation_.clear();
    confirm("the conversation is forgotten");
  }

  std::string last_question() {
    auto question = conversation_.undo();
    if (!question) throw Error(ErrorKind::usage, "there is nothing to take back", "ask something first");
    return std::move(*question);
  }

  void undo() {
    last_question();
    confirm(fmt::format("taken back; {} left", counted(conversation_.turns(), "message")));
  }

  void stats() {
    if (answer_.last.kind != Event::Kind::finished)
      throw Error(ErrorKind::usage, "there is no answer yet", "ask something first");
    const std::uint64_t peak_bytes = peak_.bytes();
    std::fputs(stats_table(*engine_, answer_).c_str(), stderr);
    const Bandwidth bandwidth = measure_bandwidth(*engine_, answer_, global_->threads);
    peak_.measured();
    std::fprintf(stderr, "  %s\n", speed_line(answer_, bandwidth, peak_bytes).c_str());
  }

  // Adds the question (none: the last one, anew) and its answer; when it is refused the conversation is as before.
  void ask(std::optional<std::string> question) {
    const Conversation before = conversation_;
    conversation_.add_user(question ? std::move(*question) : last_question());
    Answered answer;
    try {
      const auto begin = std::chrono::steady_clock::now();
      std::vector<std::int32_t> ids = engine_->encode_chat(conversation_.messages());
      answer.tokenize_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
      std::vector<std::int64_t> ends = engine_->message_ends(conversation_.messages(), ids);
      generate(std::move(ids), std::move(ends), answer);
    } catch (...) {
      conversation_ = before;
      throw;
    }
    peak_.bytes();
    conversation_.add_answer(answer.text);  // an interrupted one stays, truncated
    answer_ = std::move(answer);
  }

  void generate(std::vector<std::int32_t> ids, std::vector<std::int64_t> message_ends, Answered& answer) {
    const bool human = global_->form == OutputForm::human;
    Request request = flags_.request(std::move(ids), engine_->facts());
    request.prefix_marks = std::move(message_ends);
    const auto id = engine_->submit(std::move(request));
    if (!id) throw error_from(id.error());
    bool more = true, cancelled = false;
    while (more) {
      if (interrupted() != 0 && !cancelled) {
        engine_->cancel(*id);
        cancelled = true;
      }
      more = engine_->step([&](const Event& event) {
        answer.take(event);
        if (human && !event.text.empty()) write_stdout(event.text);
      });
    }
    if (human && (answer.text.empty() || answer.text.back() != '\n')) write_stdout("\n");
    if (interrupted() == 143) throw Error(ErrorKind::interrupted, "terminated");
    clear_interrupt();
    if (answer.last.error) throw error_from(*answer.last.error);
    if (global_->form == OutputForm::jsonl)
      write_json(document(answer));
    else if (!human)
      answers_.push_back(document(answer));  // --json is one document, written at the end
    else if (answer.last.finish == FinishReason::length && !global_->quiet)
      std::fputs("(cut: the answer reached its most tokens, or the context is full)\n", stderr);
  }

  static nlohmann::ordered_json document(const Answered& answer) {
    return {{"text", answer.text},
            {"finish_reason", name_of(answer.last.finish)},
            {"prompt_tokens", answer.last.usage.prompt_tokens},
            {"completion_tokens", answer.last.usage.completion_tokens},
            {"cached_tokens", answer.last.usage.cached_tokens},
            {"seed", answer.last.seed},
            {"timings", timings_json(answer)}};
  }

  std::string model_, system_prompt_, precision_ = "packed";
  std::int64_t context_tokens_ = 0, prefill_step_ = 512;
  bool no_history_ = false;
  ReadingFlags reading_;
  DraftFlags drafts_;
  PromptCacheFlag prompt_cache_{PromptCacheFlag::Default::share};
  GenerationFlags flags_{4096};
  const GlobalOptions* global_ = nullptr;
  std::unique_ptr<Engine> engine_;
  Conversation conversation_;
  Answered answer_;
  EnginePeak peak_;
  nlohmann::ordered_json answers_ = nlohmann::ordered_json::array();
};

}  // namespace

std::unique_ptr<Verb> make_chat_verb() { return std::make_unique<ChatVerb>(); }

}  // namespace outrider
