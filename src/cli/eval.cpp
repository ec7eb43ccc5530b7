// outrider eval perplexity MODEL --data-path FILE: token-level perplexity over a local text.
#include <algorithm>
#include <map>
#include <numeric>

#include "base/random.h"
#include "cli/interrupts.h"
#include "cli/option_values.h"
#include "cli/reading_flags.h"
#include "cli/verb.h"
#include "kernels/math.h"
#include "weights/json_strict.h"

namespace outrider {
namespace {

constexpr const char* kDefinition =
    "Perplexity of a text: exp of the mean negative log-likelihood.\n"
    "The whole text is tokenized once and cut into windows of --sequence-length tokens that do not overlap (the last "
    "may\n"
    "be shorter). Each window is a context of its own, scored from its second token. With more windows than\n"
    "--num-samples, so many are picked by --seed; otherwise, or with -1, all are taken, in order.";

// The picked windows of `all`, ascending: a Fisher-Yates shuffle by the counter generator, cut and sorted.
std::vector<std::size_t> pick_windows(std::size_t all, std::int64_t wanted, std::int64_t seed) {
  std::vector<std::size_t> order(all);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (wanted < 0 || static_cast<std::size_t>(wanted) >= all) return order;
  const auto count = static_cast<std::size_t>(wanted);
  for (std::size_t i = 0; i < count; ++i) {
    const double u = draw_uniform(seed, static_cast<std::uint32_t>(i), 0, 0, DrawPurpose::target);
    std::swap(order[i], order[i + static_cast<std::size_t>(u * static_cast<double>(all - i))]);
  }
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

class EvalVerb : public Verb {
 public:
  CLI::App* define(CLI::App& program) override {
    CLI::App* verb = program.add_subcommand("eval", "measures of a model");
    verb->require_subcommand(1);
    CLI::App* perplexity = verb->add_subcommand("perplexity", kDefinition);
    perplexity->add_option("model,--model", model_, "directory, .gguf file, or local model");
    perplexity->add_option("--data-path", data_path_, "a UTF-8 text file");
    add_whole(*perplexity, "--sequence-length", sequence_length_, "tokens of a window (512)", {2, 1 << 24});
    add_whole(*perplexity, "--num-samples", num_samples_, "windows to score; -1: all (256)", {-1, 1 << 30});
    add_whole(*perplexity, "--batch-size", batch_size_, "windows in flight (8)", {1, 1024});
    add_whole(*perplexity, "--seed", seed_, "picks the windows when there are more (123)", WholeRange{});
    perplexity->add_option("--precision", precision_, "packed or f32 (packed)");
    reading_.define(*perplexity);
    return verb;
  }

  int run(const GlobalOptions& global) override {
    if (data_path_.empty()) throw Error(ErrorKind::usage, "no --data-path is given", "name a text file");
    if (num_samples_ == 0)
      throw Error(ErrorKind::usage, "--num-samples is 0, which scores nothing",
                  "name 1 or more, or -1 for all windows");
    constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 30;
    const std::string text = read_text_file(data_path_, kMostBytes);
    LoadOptions options = load_options(global, model_);
    options.precision = precision_from(precision_);
    options.reading = reading_.options();
    options.max_rows = options.planned_rows = batch_size_;
    options.head_rows = 64;
    options.context_tokens = sequence_length_;
    const auto engine = load_with_progress(global, options);
    const std::vector<std::int32_t> ids = engine->encode(text);
    score(global, *engine, ids);
    if (scored_ == 0)
      throw Error(interrupted() != 0 ? ErrorKind::interrupted : ErrorKind::usage,
                  interrupted() != 0
                      ? "interrupted before any window was scored"
                      : fmt::format("{} has {}, the least is 2", data_path_, counted(ids.size(), "token")));
    report(global);
    return interrupted();
  }

 private:
  void score(const GlobalOptions& global, Engine& engine, std::span<const std::int32_t> ids) {
    const auto length = static_cast<std::size_t>(sequence_length_);
    // A last window of one token has nothing to score.
    const std::size_t windows = ids.size() / length + static_cast<std::size_t>(ids.size() % length > 1);
    const std::vector<std::size_t> picked = pick_windows(windows, num_samples_, seed_);
    std::map<RequestId, std::vector<double>> logprobs;
    std::map<RequestId, std::size_t> window_of;
    std::vector<double> nll(picked.size());
    std::vector<std::int64_t> tokens(picked.size(), 0);
    std::size_t next = 0, done = 0;
    std::optional<Refusal> failure;
    Progress progress("scoring", global.progress());
    const auto take = [&](const Event& event) {
      std::vector<double>& row = logprobs[event.request];
      row.insert(row.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
      if (event.kind != Event::Kind::finished) return;
      if (event.error) failure = event.error;
      const std::size_t at = window_of[event.request];
      nll[at] = -std::accumulate(row.begin(), row.end(), 0.0);
      tokens[at] = static_cast<std::int64_t>(row.size());
      logprobs.erase(event.request);
      progress.update(static_cast<double>(++done) / static_cast<double>(picked.size()));
    };
    while (done < picked.size() && interrupted() == 0 && !failure) {
      for (; next < picked.size() && next - done < static_cast<std::size_t>(batch_size_); ++next) {
        Request request;
        const std::size_t begin = picked[next] * length;
        request.ids.assign(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                           ids.begin() + static_cast<std::ptrdiff_t>(std::min(begin + length, ids.size())));
        request.want = Want::prompt_logprobs;
        const auto id = engine.submit(std::move(request));
        if (!id) throw error_from(id.error());
        window_of[*id] = next;
      }
      engine.step(take);
    }
    if (failure) throw error_from(*failure);
    // Summed in window order, whatever order they finished in.
    for (std::size_t i = 0; i < picked.size(); ++i) {
      if (tokens[i] == 0) continue;
      nll_sum_ += nll[i];
      scored_ += tokens[i];
      ++windows_;
    }
  }

  void report(const GlobalOptions& global) const {
    const double mean = nll_sum_ / static_cast<double>(scored_);
    if (global.form == OutputForm::human) {
      write_stdout(fmt::format("perplexity {:.6f}, nll {:.6f}, {} in {}{}\n", exp64(mean), mean,
                               counted(scored_, "token"), counted(windows_, "window"),
                               interrupted() != 0 ? " (partial: interrupted)" : ""));
      return;
    }
    nlohmann::ordered_json out = {
        {"perplexity", exp64(mean)}, {"nll", mean}, {"tokens", scored_}, {"windows", windows_}};
    if (interrupted() != 0) out["partial"] = true;
    write_json(out);
  }

  std::string model_, data_path_, precision_ = "packed";
  ReadingFlags reading_;
  std::int64_t sequence_length_ = 512, num_samples_ = 256, batch_size_ = 8, seed_ = 123;
  double nll_sum_ = 0;
  std::int64_t scored_ = 0, windows_ = 0;
};

}  // namespace

std::unique_ptr<Verb> make_eval_verb() { return std::make_unique<EvalVerb>(); }

}  // namespace outrider
