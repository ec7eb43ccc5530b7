// outrider convert SOURCE --mlx-path TARGET: GGUF or HF safetensors to a directory in MLX layout.
#include "weights/convert.h"

#include <algorithm>
#include <exception>
#include <mutex>

#include "base/log.h"
#include "base/text_file.h"
#include "base/worker_pool.h"
#include "cli/interrupts.h"
#include "cli/option_layers.h"
#include "cli/option_values.h"
#include "cli/reading_flags.h"
#include "cli/verb.h"
#include "engine/draft_tokens.h"
#include "engine/model_text_source.h"
#include "weights/draft_ranking.h"

namespace outrider {
namespace {

// The pool's tasks must not throw: the first failure is kept and passed on afterwards.
void run_passing_errors(WorkerPool& pool, std::int64_t count, const std::function<void(std::int64_t)>& task) {
  std::mutex mutex;
  std::exception_ptr failure;
  pool.run(count, [&](std::int64_t index, int) {
    try {
      task(index);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

class ConvertVerb : public Verb {
 public:
  CLI::App* define(CLI::App& program) override {
    CLI::App* verb =
        program.add_subcommand("convert", "GGUF or HF safetensors to MLX layout, lossless unless quantized");
    verb->alias("quantize");
    verb->add_option("source,--hf-path,--model", source_, "directory, .gguf file, or local model");
    verb->add_option("target,--mlx-path,--out", target_, "directory to make (mlx_model)");
    verb->add_flag("-q,--quantize", quantize_, "quantize to --q-bits (4)");
    verb->add_option("--q-bits", q_bits_, "4 or 8")->check(CLI::IsMember({"4", "8"}));
    group_option_ = verb->add_option("--q-group-size", q_group_size_, "32, 64 or 128 (64)")
                        ->check(CLI::IsMember({"32", "64", "128"}));
    mode_option_ = verb->add_option("--q-mode", q_mode_, "affine")->check(CLI::IsMember({"affine"}));
    add_texts(*verb, "--q-override", overrides_,
              "PATTERN=BITS[/GROUP] for module paths, repeatable, the last match wins; 16: leave as stored");
    verb->add_option("--scales", scales_, "scales of K-quants: exact (f32) or f16 (exact)")
        ->check(CLI::IsMember({"exact", "f16"}));
    verb->add_option("--requantize-bits", requantize_bits_, "Q2_K and Q3_K become 4 or 8 bit (8)")
        ->check(CLI::IsMember({"4", "8"}));
    verb->add_option("--mtp-side-car", mtp_side_car_, "a directory to make for the MTP head alone (it stays inside)");
    vocabulary_flag_ = add_whole(
        *verb, "--draft-vocab", draft_vocabulary_,
        "rank so many tokens for drafts of the MTP head, by frequency (draft_vocabulary.json); 0: none (0)", kFromZero);
    verb->add_option("--draft-vocab-text", draft_text_, "the text they are counted in (none: tokens by id)");
    verb->add_flag("--dry-run", dry_run_, "say what would be written, write nothing");
    reading_.define(*verb);
    return verb;
  }

  int run(const GlobalOptions& global) override {
    const std::filesystem::path source = resolve_model(required_model(source_));
    ConvertOptions options;
    if (q_bits_ || quantize_) options.q_bits = static_cast<int>(q_bits_.value_or(4));
    options.q_group_size = q_group_size_;
    options.overrides = overrides_;
    options.reading = reading_.options();
    options.mtp_side_car = mtp_side_car_;
    // Elsewhere it says what drafts are taken from: as a habit of the environment it does not ask for a ranking.
    if (!is_named(*vocabulary_flag_) || draft_vocabulary_ == 0) draft_vocabulary_.reset();
    refuse_idle_flags_of_head(source, options.reading);
    options.gguf.scales = scales_ == "f16" ? ScaleStorage::f16 : ScaleStorage::exact;
    options.gguf.requantize_bits = requantize_bits_;
    warn_of_idle_flags();
    refuse_taken_target();
    const ConvertPlan plan = plan_convert(source, options);
    warn_when_nothing_is_quantized(plan, options);
    if (!draft_text_.empty() && !draft_vocabulary_)
      throw Error(ErrorKind::usage, "--draft-vocab-text without --draft-vocab", "say how many tokens to rank");
    if (dry_run_) return show_plan(global, plan);
    if (std::filesystem::is_regular_file(source)) options.extra_files = tokenizer_files(source);
    if (draft_vocabulary_)
      options.extra_files[kDraftRankingFile] = draft_ranking_text(ranked_draft_tokens(source, *draft_vocabulary_));
    options.cancelled = [] { return interrupted() != 0; };
    WorkerPool pool(global.threads);
    options.parallel = [&](std::int64_t count, const std::function<void(std::int64_t)>& task) {
      run_passing_errors(pool, count, task);
    };
    const ConvertResult result = convert_with_progress(global, source, options);
    if (global.form != OutputForm::human)
      write_json({{"out", result.out.string()},
                  {"tensors", result.tensors},
                  {"bytes", result.bytes},
                  {"bits_per_weight", result.bits_per_weight}});
    else
      write_stdout(fmt::format("{}: {} tensors, {} bytes ({}), {:.3f} bits per weight\n", result.out.string(),
                               result.tensors, result.bytes, human_bytes(result.bytes), result.bits_per_weight));
    return 0;
  }

 private:
  // mlx_lm passes over these in silence.
  void warn_of_idle_flags() const {
    if (quantize_ || q_bits_) return;
    if (group_option_->count() > 0 && overrides_.empty())
      log(LogLevel::warning, "--q-group-size changes nothing without -q, --q-bits or --q-override");
    if (mode_option_->count() > 0 && overrides_.empty())
      log(LogLevel::warning, "--q-mode changes nothing without -q, --q-bits or --q-override");
  }

  void refuse_idle_flags_of_head(const std::filesystem::path& source, const SourceOptions& reading) const {
    if (draft_vocabulary_ && open_model_source(source, reading)->facts() == nullptr)
      throw Error(ErrorKind::usage,
                  fmt::format("--draft-vocab {} is given, {} is of a family without an MTP head", *draft_vocabulary_,
                              source.string()),
                  "leave --draft-vocab out");
    if (reading.mtp != MtpUse::off) return;
    const std::string idle = !mtp_side_car_.empty() ? "--mtp-side-car"
                             : draft_vocabulary_    ? fmt::format("--draft-vocab {}", *draft_vocabulary_)
                                                    : std::string();
    if (!idle.empty())
      throw Error(ErrorKind::usage, fmt::format("--mtp off and {} are both given, and no head is kept", idle),
                  "leave one of them out");
  }

  // Said before the work, and by --dry-run too.
  void refuse_taken_target() const {
    if (target_.empty())
      throw Error(ErrorKind::usage, "--mlx-path is empty, a directory to make is needed", "for example my-model");
    std::error_code fault;
    const auto status = std::filesystem::symlink_status(target_, fault);
    if (!std::filesystem::exists(status)) return;
    if (std::filesystem::is_directory(target_, fault) && std::filesystem::is_empty(target_, fault)) return;
    throw Error(ErrorKind::usage, fmt::format("{} exists and is not an empty directory", target_),
                "name another target, or remove it first");
  }

  static void warn_when_nothing_is_quantized(const ConvertPlan& plan, const ConvertOptions& options) {
    const auto asks = [](const std::string& rule) { return rule.substr(rule.rfind('=') + 1) != "16"; };
    if (!options.q_bits && std::none_of(options.overrides.begin(), options.overrides.end(), asks)) return;
    for (const ConvertItem& item : plan.items)
      if (item.requantized) return;
    log(LogLevel::warning,
        "nothing is quantized: no matrix has a width that is a multiple of its group, or all have these bits already");
  }

  ConvertResult convert_with_progress(const GlobalOptions& global, const std::filesystem::path& source,
                                      ConvertOptions& options) const {
    Progress progress("converting", global.progress());
    options.progress = [&](std::uint64_t done, std::uint64_t total) {
      progress.update(total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total));
    };
    return convert(source, target_, options);
  }

  // A GGUF file's tokenizer as the files of a model directory; none when it has no tokenizer.
  static std::map<std::string, std::string> tokenizer_files(const std::filesystem::path& gguf) {
    const GgufTokenizer metadata = gguf_tokenizer_metadata(GgufFile(gguf));
    if (metadata.tokens.empty()) return {};
    TokenizerFiles files = tokenizer_files_from_gguf(metadata);
    return {{"tokenizer.json", std::move(files.tokenizer_json)},
            {"tokenizer_config.json", std::move(files.tokenizer_config_json)}};
  }

  std::vector<std::int32_t> ranked_draft_tokens(const std::filesystem::path& source, std::int64_t count) const {
    const std::optional<ModelText> text = load_text_of(source);
    if (!text)
      throw Error(ErrorKind::usage, fmt::format("{} has no tokenizer, --draft-vocab ranks its tokens", source.string()),
                  "put its tokenizer.json beside the weights");
    const std::int64_t tokens = text->tokenizer.size();
    if (count > tokens)
      throw Error(ErrorKind::usage, fmt::format("--draft-vocab is {}, the tokenizer has {} tokens", count, tokens),
                  "rank fewer tokens");
    // What a load would refuse is refused here.
    draft_tokens(count, tokens, indispensable_tokens(text->tokenizer), {}, {});
    std::vector<std::int32_t> ids;
    if (!draft_text_.empty())
      ids = text->tokenizer.encode(read_text_file(draft_text_, kMostTextBytes), AddSpecial::no, ParseSpecial::no);
    return ranked_by_frequency(ids, tokens, count);
  }

  int show_plan(const GlobalOptions& global, const ConvertPlan& plan) const {
    if (global.form != OutputForm::human) {
      nlohmann::ordered_json items = nlohmann::ordered_json::array();
      for (const ConvertItem& item : plan.items)
        items.push_back({{"name", item.name},
                         {"kind", item.kind},
                         {"bits", item.bits},
                         {"group_size", item.group},
                         {"shape", item.shape},
                         {"bytes", item.bytes},
                         {"requantized", item.requantized}});
      write_json({{"out", target_},
                  {"tensors", plan.tensors},
                  {"bytes", plan.bytes},
                  {"bits_per_weight", plan.bits_per_weight},
                  {"dry_run", true},
                  {"items", std::move(items)}});
      return 0;
    }
    std::string out;
    for (const ConvertItem& item : plan.items)
      out += fmt::format("{:<50} {:<12} {:>14} bytes{}\n", item.name,
                         item.kind == "affine" ? fmt::format("affine {}/{}", item.bits, item.group) : item.kind,
                         item.bytes, item.requantized ? "  requantized" : "");
    write_stdout(out + fmt::format("{} tensors, {} bytes ({}), {:.3f} bits per weight; nothing is written\n",
                                   plan.tensors, plan.bytes, human_bytes(plan.bytes), plan.bits_per_weight));
    return 0;
  }

  static constexpr std::uintmax_t kMostTextBytes = std::uintmax_t{256} << 20;  // its ids are held at once

  CLI::Option* vocabulary_flag_ = nullptr;
  std::optional<std::int64_t> draft_vocabulary_;
  std::string draft_text_;
  std::string source_, mtp_side_car_, target_ = "mlx_model", q_mode_ = "affine", scales_ = "exact";
  bool quantize_ = false, dry_run_ = false;
  std::optional<std::int64_t> q_bits_;
  int q_group_size_ = 64, requantize_bits_ = 8;
  std::vector<std::string> overrides_;
  ReadingFlags reading_;
  CLI::Option *group_option_ = nullptr, *mode_option_ = nullptr;
};

}  // namespace

std::unique_ptr<Verb> make_convert_verb() { return std::make_unique<ConvertVerb>(); }

}  // namespace outrider
