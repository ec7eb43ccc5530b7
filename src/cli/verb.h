// A verb of the command line. One file per verb; main.cpp holds the list and the one error fence.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/output.h"
#include "engine/engine.h"

namespace outrider {

// Flags every verb takes (serving.md 1.1).
struct GlobalOptions {
  OutputForm form = OutputForm::human;
  bool quiet = false;
  int threads = 0;
  std::uint64_t memory_budget_bytes = 0;
  PanelUse panels = PanelUse::automatic;

  Progress::Wanted progress() const { return quiet ? Progress::Wanted::no : Progress::Wanted::yes; }
};

class Verb {
 public:
  virtual ~Verb() = default;
  // Adds the verb and its options to the program; called once. The options live as long as the verb.
  virtual CLI::App* define(CLI::App& program) = 0;
  // Runs after all layers of options are in place. Returns the exit code; failures are exceptions.
  virtual int run(const GlobalOptions& global) = 0;
};

std::unique_ptr<Verb> make_run_verb();
std::unique_ptr<Verb> make_chat_verb();
std::unique_ptr<Verb> make_convert_verb();
std::unique_ptr<Verb> make_models_verb();
std::unique_ptr<Verb> make_tokenize_verb();
std::unique_ptr<Verb> make_eval_verb();
std::unique_ptr<Verb> make_logits_verb();
std::unique_ptr<Verb> make_fit_verb();
std::unique_ptr<Verb> make_bench_verb();

// --- Pieces that verbs share ---

// MODEL as given; Error (usage) that says how to name one when it is empty.
const std::string& required_model(const std::string& model);
// A LoadOptions with what the global flags say, and no prompt cache.
LoadOptions load_options(const GlobalOptions& global, const std::string& model);
// Engine::load with a progress bar on stderr.
std::unique_ptr<Engine> load_with_progress(const GlobalOptions& global, LoadOptions options);
// "packed" or "f32".
Precision precision_from(const std::string& name);
// Bytes, or a number with B, KiB, MiB, GiB, TiB (or k, M, G, T short for them). Error (usage) otherwise.
std::uint64_t bytes_from(const std::string& text);
// All of stdin. Error (usage) when it is a terminal: `what` says what was expected there.
std::string read_stdin(std::string_view what);
// Ids separated by commas or whitespace, or a file of them. Error (usage) names the bad piece; (data) the bad file.
std::vector<std::int32_t> ids_from(const std::string& list_or_file);
std::vector<std::int32_t> ids_from_list(std::string_view list, std::string_view origin);
// A refused request as the error that ends a command: usage, memory or runtime by its code.
Error error_from(const Refusal& refusal);

}  // namespace outrider
