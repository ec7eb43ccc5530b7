// outrider bench [SUITE...]: what this machine gives, and how near to it the engine comes.
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>

#include "cli/bench_cases.h"
#include "cli/bench_report.h"
#include "cli/interrupts.h"
#include "cli/nearest_name.h"
#include "cli/option_values.h"
#include "cli/verb.h"
#include "engine/model_text_source.h"
#include "weights/local_models.h"

namespace outrider {
namespace {

constexpr std::array<std::string_view, 7> kSuites = {"kernels", "decode", "prompt", "batch",
                                                     "verify",  "start",  "peers"};
constexpr const char* kDefaultModel = "SmolLM2-135M";  // what scripts/fetch_model obtains
constexpr double kProbeSeconds = 0.05;

std::string suite_names() {
  std::string names;
  for (const std::string_view suite : kSuites) names += (names.empty() ? "" : ", ") + std::string(suite);
  return names;
}

bool of_steps(const std::string& suite) { return suite != "kernels" && suite != "start"; }

class BenchVerb : public Verb {
 public:
  CLI::App* define(CLI::App& program) override {
    CLI::App* verb = program.add_subcommand("bench", "the limits of this machine, and how near the engine comes");
    verb->add_option("suites", suites_, suite_names() + " (all but peers)");
    verb->add_option("--model", model_, "directory, .gguf file, or local model (SmolLM2-135M)");
    verb->add_option("-c,--contexts", contexts_, "committed tokens of decode, separated by commas (0,2048,8192)");
    verb->add_option("-p,--prompts", prompts_, "tokens of prompts, separated by commas (512,2048)");
    add_whole(*verb, "-b,--batch-rows", shapes_.batch_rows, "rows of the suite batch (8)", {2, 256});
    add_whole(*verb, "-n,--runs", rounds_.count, "runs of each case, taken by turns; medians are printed (5)",
              {1, 1000});
    verb->add_option("--formats", formats_, "kernels: only weight formats whose name holds this, such as \"4 bit\"");
    add_texts(*verb, "--peer", peer_commands_, "a command that runs a peer (bench/peers/README.md); may be repeated");
    return verb;
  }

  int run(const GlobalOptions& global) override {
    choose_suites();
    report_.emplace(global.form);
    rounds_.probe_seconds = kProbeSeconds;
    rounds_.stop = [] { return interrupted() != 0; };
    if (wanted("kernels")) run_kernels(global);
    std::vector<std::string> steps;
    std::copy_if(suites_.begin(), suites_.end(), std::back_inserter(steps), of_steps);
    if (!steps.empty() && interrupted() == 0) run_steps(global, steps);
    if (wanted("start") && interrupted() == 0) run_start(global);
    report_->finish();
    return interrupted();
  }

 private:
  bool wanted(std::string_view suite) const {
    return std::find(suites_.begin(), suites_.end(), suite) != suites_.end();
  }

  void choose_suites() {
    const std::vector<std::string> known(kSuites.begin(), kSuites.end());
    for (const std::string& suite : suites_) {
      if (std::find(known.begin(), known.end(), suite) != known.end()) continue;
      const std::string nearest = nearest_name(suite, known);
      throw Error(ErrorKind::usage, fmt::format("there is no suite \"{}\" (there are {})", suite, suite_names()),
                  nearest.empty() ? "" : fmt::format("did you mean {}?", nearest));
    }
    if (suites_.empty() && peer_commands_.empty()) suites_.assign(kSuites.begin(), kSuites.end() - 1);
    if (suites_.empty()) suites_ = {"peers"};
    if (wanted("peers") && peer_commands_.empty())
      throw Error(ErrorKind::usage, "the suite peers needs at least one --peer",
                  "bench/peers/run starts it with the peers that bench/peers/setup has built");
    if (!wanted("peers") && !peer_commands_.empty())
      throw Error(ErrorKind::usage, "--peer is given, and the suite peers is not asked for");
  }

  // "512,2048", each of [least, most] once. Defaults beyond the model are left out, given values are refused.
  static std::vector<std::int64_t> list_of(const std::string& text, std::string_view flag, std::int64_t least,
                                           std::int64_t most, std::vector<std::int64_t> otherwise) {
    if (text.empty()) {
      std::erase_if(otherwise, [&](std::int64_t value) { return value > most; });
      return otherwise;
    }
    std::vector<std::int64_t> values;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      std::int64_t value = 0;
      const auto [rest, fault] = std::from_chars(text.data() + begin, text.data() + end, value);
      if (fault != std::errc() || rest != text.data() + end || value < least || value > most)
        throw Error(ErrorKind::usage, fmt::format("{} names \"{}\", which is no whole number from {} to {}", flag,
                                                  text.substr(begin, end - begin), least, most));
      if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
      begin = end + 1;
    }
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
                  fmt::format("no weight format is named like \"{}\" (there are {})", formats_, names));
    return formats;
  }

  void run_kernels(const GlobalOptions& global) {
    const std::vector<WeightFormat> formats = wanted_formats();
    LoadOptions options;
    options.memory_budget_bytes = global.memory_budget_bytes;
    check_room(options, KernelBench::bytes(global.threads) + probe_bytes(), "the suite kernels");
    const auto device = make_cpu_device(global.threads);
    KernelBench bench(*device);
    MachineProbe probe(*device, probe_bytes());
    tell_machine(probe);
    for (const WeightFormat& format : formats) {
      if (interrupted() != 0) return;
      bench.load_format(format);
      report_->add(measure_by_turns(product_cases(format, bench), probe, rounds_));
    }
    report_->add(measure_by_turns(attention_cases(bench), probe, rounds_));
  }

  void run_steps(const GlobalOptions& global, const std::vector<std::string>& suites) {
    LoadOptions options = load_options(global, model_.empty() ? kDefaultModel : model_);
    const auto source = open_model_source(resolve_model(options.model));
    const std::int64_t most = plan_model(*source, options.precision).declaration.context_tokens;
    shapes_.contexts = list_of(contexts_, "--contexts", 0, most - 1, {0, 2048, 8192});
    shapes_.prompts = list_of(prompts_, "--prompts", 1, most, {512, 2048});
    std::vector<std::vector<ShapeCase>> cases;
    std::vector<StepShape> shapes;
    for (const std::string& suite : suites)
      for (const ShapeCase& c : cases.emplace_back(shape_cases(suite, shapes_))) shapes.push_back(c.shape);
    StepBench bench(options, shapes);
    std::vector<std::unique_ptr<BenchPeer>> peers;
    for (const std::string& command : peer_commands_) peers.push_back(std::make_unique<BenchPeer>(command));
    tell_machine(bench.probe());
    for (std::size_t i = 0; i < suites.size() && interrupted() == 0; ++i) {
      const auto measured =
          measure_by_turns(step_cases(suites[i], cases[i], bench, rivals_of(suites[i], peers)), bench.probe(), rounds_);
      report_->add(measured);
      report_->add(prediction_rows(measured));
      report_->add(batch_gain_rows(measured));
    }
  }

  static std::span<const std::unique_ptr<BenchPeer>> rivals_of(const std::string& suite,
                                                               std::span<const std::unique_ptr<BenchPeer>> peers) {
    return suite == "peers" ? peers : std::span<const std::unique_ptr<BenchPeer>>();
  }

  // From exec to the first id, in a process of its own as a user has it; the packed file is in the page cache from the
  // second run on.
  void run_start(const GlobalOptions& global) {
    const LoadOptions options = load_options(global, model_.empty() ? kDefaultModel : model_);
    const auto source = open_model_source(resolve_model(options.model));
    const ModelPlan model = plan_model(*source, options.precision);
    check_room(options, probe_bytes(), "the probe of the memory");
    const auto device = make_cpu_device(global.threads);
    MachineProbe probe(*device, probe_bytes());
    tell_machine(probe);
    constexpr const char* kIds = "1,2,3,4";
    const StepShape shape = {.tokens = 4};
    std::vector<BenchCase> cases(1);
    cases[0].suite = "start";
    cases[0].name = "start ids 4";
    cases[0].run = [&global, &options] { return start_seconds(global, options.model, {"--ids", kIds}); };
    cases[0].least_seconds = [&model, shape](const MachineLimits& limits) {
      return least_seconds(model.work, model.declaration.kv.token_bytes(), limits, shape);
    };
    if (estimated_text_bytes(source->path()) > 0) {
      BenchCase text;
      text.suite = "start";
      text.name = "start text";
      text.run = [&global, &options] { return start_seconds(global, options.model, {"--prompt", "Hello"}); };
      cases.push_back(std::move(text));
    }
    for (BenchCase& c : cases) {
      c.unit = "ms";
      c.quantity = Quantity::time;
      c.amount = 1e3;
    }
    report_->add(measure_by_turns(cases, probe, rounds_));
  }

  static double start_seconds(const GlobalOptions& global, const std::string& model,
                              const std::vector<std::string>& input) {
    std::vector<std::string> words = {"/proc/self/exe", "--quiet", "--jsonl",     "run", "--model", model,
                                      "--max-tokens",   "1",       "--ignore-eos"};
    words.insert(words.end(), input.begin(), input.end());
    if (global.threads > 0) words.insert(words.end(), {"--threads", std::to_string(global.threads)});
    if (global.memory_budget_bytes > 0)
      words.insert(words.end(), {"--memory-budget", std::to_string(global.memory_budget_bytes)});
    const auto begin = std::chrono::steady_clock::now();
    ChildProcess child(words);
    const std::optional<std::string> line = child.read_line();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    while (child.read_line()) {
    }
    const int code = child.wait();
    if (code != 0 || !line)
      throw Error(ErrorKind::runtime,
                  fmt::format("`run {}` ended with {}: {}", model, code, line.value_or("no output")));
    return seconds;
  }

  std::vector<std::string> suites_, peer_commands_;
  std::string model_, contexts_, prompts_, formats_;
  BenchShapes shapes_;
  Rounds rounds_;
  std::optional<BenchReport> report_;
  bool machine_told_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_bench_verb() { return std::make_unique<BenchVerb>(); }

}  // namespace outrider
