// outrider run [MODEL] [PROMPT]: one answer, streamed.
#include <chrono>
#include <cstdio>

#include "cli/answer_report.h"
#include "cli/draft_flags.h"
#include "cli/generation_flags.h"
#include "cli/interrupts.h"
#include "cli/option_values.h"
#include "cli/prompt_cache_flag.h"
#include "cli/reading_flags.h"
#include "cli/verb.h"

namespace outrider {
namespace {

class RunVerb : public Verb {
 public:
  CLI::App* define(CLI::App& program) override {
    CLI::App* verb = program.add_subcommand("run", "answer one prompt and exit");
    verb->alias("generate")->alias("gen");
    verb->add_option("model,--model", model_, "directory, .gguf file, or local model");
    prompt_option_ = verb->add_option("prompt,--prompt,-p", prompt_, "the prompt; - or none: read from stdin");
    ids_option_ = verb->add_option("--ids", ids_, "token ids instead of text: a comma-separated list, or a file");
    verb->add_option("--system-prompt", system_prompt_, "a system message before the prompt");
    verb->add_option("--prefill-response", prefill_, "the answer starts after this text");
    verb->add_flag("--ignore-chat-template", ignore_template_, "the prompt is plain text to continue");
    add_whole(*verb, "--ctx", context_tokens_, "context to plan memory for (the model's, or what fits)", kFromOne);
    add_whole(*verb, "--prefill-step-size", prefill_step_, "most prompt tokens of one step (512)", kFromOne);
    verb->add_option("--precision", precision_, "packed, or f32: the slow reference (packed)");
    reading_.define(*verb);
    verb->add_flag("--stats", stats_, "more about time and memory on stderr");
    drafts_.define(*verb);
    prompt_cache_.define(*verb);
    flags_.define(*verb);
    return verb;
  }

  int run(const GlobalOptions& global) override {
    LoadOptions options = load_options(global, model_);
    if (prompt_option_->count() == 0 && ids_option_->count() == 0) refuse_prompt_as_model();
    options.precision = precision_from(precision_);
    options.reading = reading_.options();
    options.context_tokens = context_tokens_;
    options.prefill_step_tokens = prefill_step_;
    options.max_rows = 1;
    drafts_.apply(options, reading_, flags_.of_drafts());
    prompt_cache_.apply(options);
    std::vector<std::int32_t> given_ids;
    if (ids_option_->count() > 0) {
      if (!prompt_.empty() || !system_prompt_.empty() || !prefill_.empty())
        throw Error(ErrorKind::usage, "--ids and a text prompt are both given", "give one of them");
      given_ids = ids_from(ids_);
    } else if (prompt_.empty() || prompt_ == "-") {
      prompt_ = read_stdin("prompt");
    }
    const auto engine = load_with_progress(global, options);
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::int32_t> ids = given_ids.empty() ? encode(*engine) : std::move(given_ids);
    answer_.tokenize_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    generate(global, *engine, std::move(ids));
    report(global, *engine);
    return interrupted();
  }

 private:
  // The one argument that is given names the model: said before a prompt is waited for.
  void refuse_prompt_as_model() const {
    if (model_.empty()) return;
    try {
      resolve_model(model_);
    } catch (const Error& error) {
      throw Error(error.kind(), error.what(), error.hint() + "; a prompt alone goes with -p");
    }
  }

  std::vector<std::int32_t> encode(const Engine& engine) const {
    if (ignore_template_ || !engine.facts().has_chat_template) {
      const std::string system = system_prompt_.empty() ? "" : system_prompt_ + "\n\n";
      return engine.encode(system + prompt_ + prefill_);
    }
    std::vector<ChatMessage> messages;
    if (!system_prompt_.empty()) messages.push_back({"system", system_prompt_});
    messages.push_back({"user", prompt_});
    return engine.encode_chat(messages, prefill_);
  }

  void generate(const GlobalOptions& global, Engine& engine, std::vector<std::int32_t> ids) {
    const auto id = engine.submit(flags_.request(std::move(ids), engine.facts()));
    if (!id) throw error_from(id.error());
    bool more = true, cancelled = false;
    while (more) {
      if (interrupted() != 0 && !cancelled) {
        engine.cancel(*id);
        cancelled = true;
      }
      more = engine.step([&](const Event& event) {
        answer_.take(event);
        show(global, event);
      });
    }
    if (answer_.last.error) throw error_from(*answer_.last.error);
  }

  void show(const GlobalOptions& global, const Event& event) const {
    if (global.form == OutputForm::human) {
      if (!event.text.empty()) write_stdout(event.text);
      const bool open_line =
          event.kind == Event::Kind::finished && (answer_.text.empty() || answer_.text.back() != '\n');
      if (open_line) write_stdout("\n");
    } else if (global.form == OutputForm::jsonl && event.kind == Event::Kind::tokens) {
      nlohmann::ordered_json line = {{"event", "tokens"}, {"text", event.text}, {"ids", event.ids}};
      if (flags_.wants_logprobs()) line["logprobs"] = logprobs_json(event.logprobs);
      write_json(line);
    }
  }

  void report(const GlobalOptions& global, const Engine& engine) const {
    // The peak before the bandwidth buffer exists: the answer's own.
    const std::uint64_t peak_bytes = process_peak_bytes();
    if (global.form != OutputForm::human) write_json(document(global, engine));
    if (stats_) std::fputs(stats_table(engine, answer_).c_str(), stderr);
    if (global.quiet || (global.form != OutputForm::human && !stats_)) return;
    // An interrupted user does not wait for a measurement.
    const Bandwidth bandwidth = interrupted() != 0 ? Bandwidth{} : measure_bandwidth(engine, answer_, global.threads);
    std::fprintf(stderr, "%s%s\n", speed_line(answer_, bandwidth, peak_bytes).c_str(),
                 interrupted() != 0 ? " (partial: interrupted)" : "");
  }

  nlohmann::ordered_json document(const GlobalOptions& global, const Engine& engine) const {
    const Event& last = answer_.last;
    nlohmann::ordered_json out;
    if (global.form == OutputForm::jsonl) out["event"] = "finished";
    out["text"] = answer_.text;
    out["ids"] = answer_.ids;
    out["finish_reason"] = name_of(last.finish);
    if (!last.stop_match.empty()) out["stop"] = last.stop_match;
    out["prompt_tokens"] = last.usage.prompt_tokens;
    out["completion_tokens"] = last.usage.completion_tokens;
    out["cached_tokens"] = last.usage.cached_tokens;
    out["seed"] = last.seed;
    out["load"] = load_json(engine.load_times());
    out["timings"] = timings_json(answer_);
    if (interrupted() != 0) out["partial"] = true;
    if (flags_.wants_logprobs()) out["logprobs"] = logprobs_json(answer_.logprobs);
    return out;
  }

  std::string model_, prompt_, ids_, system_prompt_, prefill_, precision_ = "packed";
  std::int64_t context_tokens_ = 0, prefill_step_ = 512;
  bool ignore_template_ = false, stats_ = false;
  DraftFlags drafts_;
  PromptCacheFlag prompt_cache_{PromptCacheFlag::Default::nothing};
  GenerationFlags flags_{512};
  ReadingFlags reading_;
  Answered answer_;
  CLI::Option *ids_option_ = nullptr, *prompt_option_ = nullptr;
};

}  // namespace

std::unique_ptr<Verb> make_run_verb() { return std::make_unique<RunVerb>(); }

}  // namespace outrider
