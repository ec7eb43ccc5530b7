// outrider fit MODEL: the memory contract as a table.
#include "cli/draft_flags.h"
#include "cli/option_values.h"
#include "cli/prompt_cache_flag.h"
#include "cli/reading_flags.h"
#include "cli/verb.h"
#include "engine/speed.h"

namespace outrider {
namespace {

class FitVerb : public Verb {
 public:
  CLI::App* define(CLI::App& program) override {
    CLI::App* verb = program.add_subcommand("fit", "what a model costs in memory, and the largest context");
    verb->add_option("model,--model", model_, "directory, .gguf file, or local model");
    add_whole(*verb, "--ctx", context_tokens_, "context to plan (the model's, or what fits)", kFromOne);
    add_whole(*verb, "--rows", rows_, "rows at that context (1)", kFromOne);
    verb->add_option("--precision", precision_, "packed or f32 (packed)");
    reading_.define(*verb);
    drafts_.define(*verb);
    prompt_cache_.define(*verb);
    return verb;
  }

  int run(const GlobalOptions& global) override {
    LoadOptions options = load_options(global, model_);
    options.precision = precision_from(precision_);
    options.reading = reading_.options();
    drafts_.apply(options, reading_, {});
    prompt_cache_.apply(options);
    options.context_tokens = context_tokens_;
    options.planned_rows = rows_;
    options.max_rows = rows_;
    const MemoryPlan plan = plan_memory(options);
    const std::optional<SpeedPrediction> speed = predict_speed(options, plan);
    if (global.form == OutputForm::human)
      write_stdout(table(plan) + (speed ? speed_lines(*speed) : ""));
    else
      write_json(document(plan, speed));
    return plan.fits() ? 0 : static_cast<int>(ErrorKind::memory);
  }

 private:
  static nlohmann::ordered_json document(const MemoryPlan& plan, const std::optional<SpeedPrediction>& speed) {
    nlohmann::ordered_json parts, contexts, predicted;
    for (const auto& [part, bytes] : plan.parts) parts[fmt::format("{}_bytes", name_of(part))] = bytes;
    for (const auto& [rows, tokens] : plan.max_context_tokens) contexts[std::to_string(rows)] = tokens;
    if (speed)
      predicted = {{"rows", 1},
                   {"decode_context_tokens", 0},
                   {"decode_tokens_per_s", speed->decode_tokens_per_s},
                   {"context_tokens", speed->context_tokens},
                   {"decode_at_context_tokens_per_s", speed->decode_at_context_tokens_per_s},
                   {"prompt_tokens_per_s", speed->prompt_tokens_per_s},
                   {"read_gb_per_s", speed->machine.read_gb_per_s},
                   {"f32_gmac_per_s", speed->machine.f32_gmac_per_s},
                   {"i16_gmac_per_s", speed->machine.i16_gmac_per_s},
                   {"decode_share_of_limit", kDecodeShare},
                   {"prompt_share_of_limit", kPromptShare}};
    return {{"budget_bytes", plan.budget_bytes},
            {"planned_bytes", plan.planned_bytes},
            {"fits", plan.fits()},
            {"parts", std::move(parts)},
            {"context_tokens", plan.context_tokens},
            {"rows", plan.rows},
            {"kv_bytes_per_token", plan.kv_bytes_per_token},
            {"max_context_tokens", std::move(contexts)},
            {"predicted", std::move(predicted)}};
  }

  static std::string speed_lines(const SpeedPrediction& speed) {
    return fmt::format(
        "predicted for one row: decode {:.1f} tokens/s at context 0, {:.1f} at {}; prompt {:.0f} tokens/s\n"
        "  from {:.1f} GB/s read, {:.0f} G multiply-adds/s in 16 bit and {:.0f} in f32, measured now, of which decode "
        "reaches {:.0f} % and prompts {:.0f} %\n",
        speed.decode_tokens_per_s, speed.decode_at_context_tokens_per_s, speed.context_tokens,
        speed.prompt_tokens_per_s, speed.machine.read_gb_per_s, speed.machine.i16_gmac_per_s,
        speed.machine.f32_gmac_per_s, 100 * kDecodeShare, 100 * kPromptShare);
  }

  std::string table(const MemoryPlan& plan) const {
    std::string out;
    const auto row = [&](std::string_view name, std::uint64_t bytes) {
      out += fmt::format("{:<10} {:>16}  {}\n", name, bytes, human_bytes(bytes));
    };
    for (const auto& [part, bytes] : plan.parts) row(name_of(part), bytes);
    row("planned", plan.planned_bytes);
    row("budget", plan.budget_bytes);
    out += fmt::format("\nfor a context of {} tokens and {} row{}, {} bytes of KV per token: {}\n", plan.context_tokens,
                       plan.rows, plan.rows == 1 ? "" : "s", plan.kv_bytes_per_token,
                       plan.fits() ? "fits" : "does not fit");
    for (const auto& [rows, tokens] : plan.max_context_tokens)
      out += fmt::format("largest context for {:>2} row{}: {}\n", rows, rows == 1 ? " " : "s",
                         tokens > 0 ? fmt::format("{} tokens", tokens) : std::string("none fits"));
    if (context_tokens_ == 0 && plan.parts.contains(MemoryPart::prefix) &&
        plan.context_tokens < plan.max_context_tokens.at(1))
      out += "a --ctx beyond what else is planned takes from prefix\n";
    return out;
  }

  std::string model_, precision_ = "packed";
  ReadingFlags reading_;
  DraftFlags drafts_;
  PromptCacheFlag prompt_cache_{PromptCacheFlag::Default::share};
  std::int64_t context_tokens_ = 0, rows_ = 1;
};

}  // namespace

std::unique_ptr<Verb> make_fit_verb() { return std::make_unique<FitVerb>(); }

}  // namespace outrider
