// outrider bench [SUITE...]: what this machine gives, and how near to it the engine comes.
#include <algorithm>
#include <array>
#include <chrono>
#include <functional>

#include "base/log.h"
#include "cli/bench_cases.h"
#include "cli/bench_mtp.h"
#include "cli/bench_report.h"
#include "cli/comma_list.h"
#include "cli/interrupts.h"
#include "cli/nearest_name.h"
#include "cli/option_values.h"
#include "cli/reading_flags.h"
#include "cli/verb.h"
#include "engine/model_text_source.h"
#include "weights/local_models.h"

extern char** environ;

namespace outrider {
namespace {

constexpr std::array<std::string_view, 8> kSuites = {"kernels", "decode", "prompt", "batch",
                                                     "verify",  "start",  "peers",  "mtp"};
constexpr std::size_t kSuitesByDefault = 6;
constexpr const char* kDefaultModel = "SmolLM2-135M";  // what scripts/fetch_model obtains
constexpr double kProbeSeconds = 0.05;
constexpr std::int64_t kStartTokens = 5;  // four ids and the first one made

std::string suite_names() {
  std::string names;
  for (const std::string_view suite : kSuites) names += (names.empty() ? "" : ", ") + std::string(suite);
  return names;
}

bool of_steps(const std::string& suite) { return suite != "kernels" && suite != "start" && suite != "mtp"; }

class BenchVerb : public Verb {
 public:
  CLI::App* define(CLI::App& program) override {
    CLI::App* verb = program.add_subcommand("bench", "the limits of this machine, and how near the engine comes");
    verb->add_option("suites", suites_, suite_names() + " (all but peers and mtp)");
    verb->add_option("--model", model_,
                     "directory, .gguf file, or local model (SmolLM2-135M; mtp: the small model that comes along)");
    contexts_flag_ =
        verb->add_option("-c,--contexts", contexts_, "committed tokens of decode, separated by commas (0,2048,8192)");
    prompts_flag_ = verb->add_option("-p,--prompts", prompts_, "tokens of prompts, separated by commas (512,2048)");
    add_whole(*verb, "-b,--batch-rows", shapes_.batch_rows, "rows of the suite batch (8)", {2, 256});
    add_whole(*verb, "-n,--runs", rounds_.count,
              "runs of each case, taken by turns; medians are printed, of mtp means (5)", {1, 1000});
    verb->add_option("--formats", formats_, "kernels: only weight formats whose name holds this, such as \"4 bit\"");
    add_texts(*verb, "--peer", peer_commands_, "a command that runs a peer (bench/peers/README.md); may be repeated");
    mtp_.define(*verb);
    reading_.define(*verb);
    return verb;
  }

  int run(const GlobalOptions& global) override {
    choose_suites();
    prepare(global);
    report_.emplace(global.form);
    rounds_.probe_seconds = kProbeSeconds;
    rounds_.stop = [] { return interrupted() != 0; };
    try {
      measure_all(global);
    } catch (const Error& error) {
      const bool by_signal = error.kind() == ErrorKind::interrupted && interrupted() != 0;
      report_->cut_short();
      if (by_signal || !report_->empty()) report_->finish();
      if (!by_signal) throw;
      return interrupted();
    }
    report_->finish();
    return interrupted();
  }

 private:
  struct Steps {
    std::string suite;
    std::vector<ShapeCase> cases;
  };

  void measure_all(const GlobalOptions& global) {
    if (wanted("kernels")) run_kernels(global);
    if (!steps_.empty() && interrupted() == 0) run_steps();
    if (wanted("start") && interrupted() == 0) run_start(global);
    const auto tell = [this](MachineProbe& probe) { tell_machine(probe); };
    if (wanted("mtp")) mtp_.run(*report_, tell, global.progress(), rounds_.stop);
  }

  // All that can be refused is refused before anything is measured.
  void prepare(const GlobalOptions& global) {
    if (wanted("kernels")) {
      kernel_formats_ = wanted_formats();
      LoadOptions options;
      options.memory_budget_bytes = global.memory_budget_bytes;
      check_room(options, KernelBench::bytes(global.threads) + probe_bytes(), "the suite kernels");
    }
    if (suites_ == std::vector<std::string>{"kernels"}) return;
    if (wanted("mtp")) {
      options_ = load_options(global, model_);
      options_.reading = reading_.options();
      mtp_.prepare(options_, rounds_.count);
      return;
    }
    options_ = load_options(global, model_.empty() ? kDefaultModel : model_);
    options_.reading = reading_.options();
    source_ = open_model_source(resolve_model(options_.model), options_.reading);
    plan_ = plan_model(*source_, options_.precision);
    prepare_cases();
    std::vector<StepShape> shapes = step_shapes();
    if (!shapes.empty()) StepBench::check(options_, shapes);
    if (!wanted("start")) return;
    check_room(options_, probe_bytes(), "the probe of the memory");
    if (const MemoryPlan memory = plan_memory(options_); !memory.fits()) throw over_budget(memory);
  }

  // Suites beyond the model's context are left out with a note; when no other is left, that is an error.
  void prepare_cases() {
    const std::int64_t most = plan_.declaration.context_tokens;
    if (std::any_of(suites_.begin(), suites_.end(), of_steps)) {
      shapes_.contexts = list_of(*contexts_flag_, contexts_, 0, most - 1, {0, 2048, 8192});
      shapes_.prompts = list_of(*prompts_flag_, prompts_, 1, most, {512, 2048});
    }
    std::vector<Error> misfits;
    std::vector<std::string> fitting;
    for (const std::string& suite : suites_) {
      std::vector<ShapeCase> cases;
      if (of_steps(suite)) cases = shape_cases(suite, shapes_);
      if (const std::optional<Error> misfit = misfit_of(suite, cases, most)) {
        misfits.push_back(*misfit);
        continue;
      }
      fitting.push_back(suite);
      if (of_steps(suite)) steps_.push_back({suite, std::move(cases)});
    }
    if (fitting.empty()) throw misfits.front();
    for (const Error& misfit : misfits) log(LogLevel::warning, "{}: it is left out", misfit.what());
    suites_ = std::move(fitting);
  }

  static std::optional<Error> misfit_of(const std::string& suite, const std::vector<ShapeCase>& cases,
                                        std::int64_t most) {
    if (of_steps(suite) && cases.empty())
      return Error(ErrorKind::usage,
                   fmt::format("the suite {} has no prompt of at most {} tokens, the model's context", suite, most),
                   fmt::format("name shorter prompts, such as -p {}", most));
    const std::int64_t needed = suite == "start" ? kStartTokens : needed_context(cases);
    if (needed <= most) return {};
    return Error(ErrorKind::usage,
                 fmt::format("the suite {} needs {} tokens of context, the model has {}", suite, needed, most),
                 "leave the suite out, or name a model of a longer context");
  }

  std::vector<StepShape> step_shapes() const {
    std::vector<StepShape> shapes;
    for (const Steps& steps : steps_)
      for (const ShapeCase& c : steps.cases) shapes.push_back(c.shape);
    return shapes;
  }

  // measure_by_turns(), and when a run fails, the rows of what was measured until then are reported before its error.
  std::vector<BenchRow> measured(std::vector<BenchCase> cases, MachineProbe& probe) {
    std::vector<CaseTimes> times(cases.size());
    const auto note = [](std::function<double()>& run, std::vector<double>& seconds) {
      run = [inner = std::move(run), &seconds] { return seconds.emplace_back(inner()); };
    };
    for (std::size_t i = 0; i < cases.size(); ++i) {
      note(cases[i].run, times[i].seconds);
      times[i].rivals.resize(cases[i].rivals.size());
      for (std::size_t r = 0; r < times[i].rivals.size(); ++r) note(cases[i].rivals[r].run, times[i].rivals[r]);
    }
    try {
      return measure_by_turns(cases, probe, rounds_);
    } catch (const Error&) {
      report_->cut_short();
      report_->add(rows_of(cases, times, probe.measure(kProbeSeconds)));
      throw;
    }
  }

  bool wanted(std::string_view suite) const {
    return std::find(suites_.begin(), suites_.end(), suite) != suites_.end();
  }

  void drop_repeated() {
    std::vector<std::string> once;
    for (std::string& suite : suites_)
      if (std::find(once.begin(), once.end(), suite) == once.end()) once.push_back(std::move(suite));
    suites_ = std::move(once);
  }

  void choose_suites() {
    const std::vector<std::string> known(kSuites.begin(), kSuites.end());
    for (const std::string& suite : suites_) {
      if (std::find(known.begin(), known.end(), suite) != known.end()) continue;
      const std::string nearest = nearest_name(suite, known);
      throw Error(ErrorKind::usage, fmt::format("there is no suite \"{}\" (there are {})", suite, suite_names()),
                  nearest.empty() ? "see outrider bench --help" : fmt::format("did you mean {}?", nearest));
    }
    drop_repeated();
    if (suites_.empty() && peer_commands_.empty()) suites_.assign(kSuites.begin(), kSuites.begin() + kSuitesByDefault);
    if (suites_.empty()) suites_ = {"peers"};
    if (wanted("peers") && peer_commands_.empty())
      throw Error(ErrorKind::usage, "the suite peers needs at least one --peer",
                  "bench/peers/run starts it with the peers that bench/peers/setup has built");
    if (!wanted("peers") && !peer_commands_.empty())
      throw Error(ErrorKind::usage, "--peer is given, and the suite peers is not asked for",
                  "name peers among the suites, or leave --peer out");
    if (!wanted("mtp")) mtp_.refuse_flags();
    if (wanted("mtp") && suites_.size() > 1)
      throw Error(ErrorKind::usage, "the suite mtp runs alone: it holds several engines of one model",
                  "run `outrider bench mtp` for itself");
  }

  // "512,2048", each of [least, most] once. Defaults beyond the model are left out, given values are refused.
  static std::vector<std::int64_t> list_of(const CLI::Option& option, const std::string& text, std::int64_t least,
                                           std::int64_t most, std::vector<std::int64_t> otherwise) {
    const std::string flag = option.get_name();
    if (option.count() == 0) {
      std::erase_if(otherwise, [&](std::int64_t value) { return value > most; });
      return otherwise;
    }
    const std::vector<std::int64_t> given =
        comma_list<std::int64_t>(flag, text, fmt::format("whole number from {} to {}", least, most),
                                 fmt::format("name numbers separated by commas, such as {} {}", flag, most),
                                 [&](std::string_view piece) { return number_within(piece, least, most); });
    std::vector<std::int64_t> values;
    for (const std::int64_t value : given)
      if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    return values;
  }

  void tell_machine(MachineProbe& probe) {
    if (std::exchange(machine_told_, true)) return;
    const MachineLimits limits = probe.measure(kProbeSeconds);
    std::vector<BenchRow> rows;
    const auto add = [&](std::string name, double value, const char* unit) {
      rows.push_back({"machine", std::move(name), unit, value, {}, {}, "", {}, {}});
    };
    add("read", limits.read_gb_per_s, "GB/s");
    const auto peak = [&](const char* kind_name, PeakKind kind, double value) {
      add(fmt::format("{} ({})", kind_name, peak_loop(kernels().isa, kind).instructions), value, "Gmac/s");
    };
    peak("f32", PeakKind::f32, limits.f32_gmac_per_s);
    peak("16 bit", PeakKind::i16, limits.i16_gmac_per_s);
    peak("8 bit", PeakKind::i8, limits.i8_gmac_per_s);
    report_->add(rows);
  }

  void check_room(const LoadOptions& options, std::uint64_t needed, std::string_view what) const {
    const std::uint64_t budget = budget_bytes(options);
    if (needed > budget)
      throw Error(ErrorKind::memory, fmt::format("{} takes {} bytes, the budget is {}", what, needed, budget),
                  "raise --memory-budget");
  }

  std::vector<WeightFormat> wanted_formats() const {
    std::vector<WeightFormat> formats = weight_formats();
    std::string names;
    for (const WeightFormat& format : formats) names += (names.empty() ? "" : "; ") + format.name;
    std::erase_if(formats, [&](const WeightFormat& f) { return f.name.find(formats_) == std::string::npos; });
    if (formats.empty())
      throw Error(ErrorKind::usage,
                  fmt::format("no weight format is named like \"{}\" (there are {})", formats_, names),
                  "name a part of one of these, such as --formats \"4 bit\"");
    return formats;
  }

  void run_kernels(const GlobalOptions& global) {
    const auto device = make_cpu_device(global.threads);
    KernelBench bench(*device);
    MachineProbe probe(*device, probe_bytes());
    tell_machine(probe);
    for (const WeightFormat& format : kernel_formats_) {
      if (interrupted() != 0) return;
      bench.load_format(format);
      report_->add(measured(product_cases(format, bench), probe));
    }
    report_->add(measured(attention_cases(bench), probe));
  }

  void run_steps() {
    StepBench bench(options_, step_shapes());
    std::vector<std::unique_ptr<BenchPeer>> peers;
    for (const std::string& command : peer_commands_) peers.push_back(std::make_unique<BenchPeer>(command));
    tell_machine(bench.probe());
    for (const Steps& steps : steps_) {
      if (interrupted() != 0) return;
      const auto rows =
          measured(step_cases(steps.suite, steps.cases, bench, rivals_of(steps.suite, peers)), bench.probe());
      report_->add(rows);
      report_->add(prediction_rows(rows));
      report_->add(batch_gain_rows(rows));
    }
  }

  static std::span<const std::unique_ptr<BenchPeer>> rivals_of(const std::string& suite,
                                                               std::span<const std::unique_ptr<BenchPeer>> peers) {
    return suite == "peers" ? peers : std::span<const std::unique_ptr<BenchPeer>>();
  }

  static const char* name_of_use(PanelUse use) {
    return use == PanelUse::off ? "off" : use == PanelUse::always ? "always" : "auto";
  }

  // Our environment without the flags in it (OUTRIDER_TEMP, ...): they would change what is measured.
  static std::vector<std::string> without_flags() {
    std::vector<std::string> kept;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view text = *variable;
      if (!text.starts_with("OUTRIDER_") || text.starts_with("OUTRIDER_ISA=") || text.starts_with("OUTRIDER_PIN="))
        kept.emplace_back(text);
    }
    return kept;
  }

  // From exec to the first id, in a process of its own as a user has it; the packed file is in the page cache from the
  // second run on.
  void run_start(const GlobalOptions& global) {
    const auto device = make_cpu_device(global.threads);
    MachineProbe probe(*device, probe_bytes());
    tell_machine(probe);
    constexpr const char* kIds = "1,2,3,4";
    const StepShape shape = {.tokens = 4};
    std::vector<BenchCase> cases(1);
    cases[0].suite = "start";
    cases[0].name = "start ids 4";
    cases[0].run = [this, &global] { return start_seconds(global, options_.model, {"--ids", kIds}); };
    cases[0].least_seconds = [this, shape](const MachineLimits& limits) {
      return least_seconds(plan_.work, plan_.declaration.kv.token_bytes(), limits, shape);
    };
    if (estimated_text_bytes(source_->path()) > 0) {
      BenchCase text;
      text.suite = "start";
      text.name = "start text";
      text.run = [this, &global] { return start_seconds(global, options_.model, {"--prompt", "Hello"}); };
      cases.push_back(std::move(text));
    }
    for (BenchCase& c : cases) {
      c.unit = "ms";
      c.quantity = Quantity::time;
      c.amount = 1e3;
    }
    report_->add(measured(std::move(cases), probe));
  }

  double start_seconds(const GlobalOptions& global, const std::string& model,
                       const std::vector<std::string>& input) const {
    std::vector<std::string> words = {"/proc/self/exe", "--quiet", "--jsonl",     "run", "--model", model,
                                      "--max-tokens",   "1",       "--ignore-eos"};
    words.insert(words.end(), input.begin(), input.end());
    const std::vector<std::string> reading = reading_.words();
    words.insert(words.end(), reading.begin(), reading.end());
    if (global.threads > 0) words.insert(words.end(), {"--threads", std::to_string(global.threads)});
    if (global.memory_budget_bytes > 0)
      words.insert(words.end(), {"--memory-budget", std::to_string(global.memory_budget_bytes)});
    words.insert(words.end(), {"--panel-file", name_of_use(global.panels)});
    const std::vector<std::string> environment = without_flags();
    const auto begin = std::chrono::steady_clock::now();
    ChildProcess child(fmt::format("`outrider run {}`", model), words, environment);
    const std::optional<std::string> line = child.read_line();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    while (child.read_line()) {
    }
    const int code = child.wait();
    if (interrupted() != 0) throw Error(ErrorKind::interrupted, fmt::format("interrupted during `run {}`", model));
    if (code != 0 || !line)
      throw Error(ErrorKind::runtime,
                  fmt::format("`run {}` ended with {}: {}", model, code, line.value_or("no output")),
                  "run it by hand to see why");
    return seconds;
  }

  LoadOptions options_;
  std::unique_ptr<ModelSource> source_;
  ModelPlan plan_;
  std::vector<Steps> steps_;
  std::vector<WeightFormat> kernel_formats_;
  CLI::Option *contexts_flag_ = nullptr, *prompts_flag_ = nullptr;
  std::vector<std::string> suites_, peer_commands_;
  std::string model_, contexts_, prompts_, formats_;
  MtpSuite mtp_;
  ReadingFlags reading_;
  BenchShapes shapes_;
  Rounds rounds_;
  std::optional<BenchReport> report_;
  bool machine_told_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_bench_verb() { return std::make_unique<BenchVerb>(); }

}  // namespace outrider
