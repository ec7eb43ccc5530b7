// outrider logits MODEL --ids LIST|FILE --out X.safetensors: the conformance verb. Needs no tokenizer.
#include <cstring>

#include "cli/interrupts.h"
#include "cli/option_values.h"
#include "cli/verb.h"
#include "weights/safetensors_writer.h"

namespace outrider {
namespace {

class LogitsVerb : public Verb {
 public:
  CLI::App* define(CLI::App& program) override {
    CLI::App* verb = program.add_subcommand("logits", "raw ids in, logits out as safetensors");
    verb->add_option("model,--model", model_, "directory, .gguf file, or local model");
    ids_option_ = verb->add_option("--ids", ids_, "comma-separated token ids, or a file of them");
    verb->add_option("--out", out_, "the safetensors file to write: logits [T,V] f32");
    verb->add_flag("--hidden", hidden_, "write hidden_pre_norm [T,E] f32 too");
    verb->add_option("--precision", precision_, "packed or f32 (packed)");
    add_whole(*verb, "--prefill-step-size", prefill_step_, "most tokens of one step (512)", kFromOne);
    return verb;
  }

  int run(const GlobalOptions& global) override {
    if (ids_option_->count() == 0) throw Error(ErrorKind::usage, "no --ids are given", "for example --ids 1,2,3");
    if (out_.empty()) throw Error(ErrorKind::usage, "no --out is given", "for example --out logits.safetensors");
    Request request;
    request.ids = ids_from(ids_);
    request.want = Want::prompt_logits;
    request.max_tokens = 0;
    const auto tokens = static_cast<std::int64_t>(request.ids.size());
    LoadOptions options = load_options(global, model_);
    options.precision = precision_from(precision_);
    options.max_rows = 1;
    options.head_rows = 64;
    options.context_tokens = tokens;
    options.prefill_step_tokens = prefill_step_;
    const auto engine = Engine::load(options);
    write(*engine, std::move(request), tokens);
    const std::int64_t vocab = engine->facts().vocab, width = engine->facts().width;
    if (global.form != OutputForm::human) {
      nlohmann::ordered_json tensors = {{"logits", {tokens, vocab}}};
      if (hidden_) tensors["hidden_pre_norm"] = {tokens, width};
      write_json({{"out", out_}, {"tensors", std::move(tensors)}});
    } else {
      write_stdout(fmt::format("{}: logits [{}, {}]{}\n", out_, tokens, vocab,
                               hidden_ ? fmt::format(", hidden_pre_norm [{}, {}]", tokens, width) : std::string()));
    }
    return 0;
  }

 private:
  void write(Engine& engine, Request request, std::int64_t tokens) const {
    const auto id = engine.submit(std::move(request));
    if (!id) throw error_from(id.error());
    std::vector<StoredTensor> tensors(1);
    tensors[0].name = "logits";
    tensors[0].dtype = Dtype::F32;
    tensors[0].shape = {tokens, engine.facts().vocab};
    if (hidden_) {
      tensors.push_back(tensors[0]);
      tensors[1].name = "hidden_pre_norm";
      tensors[1].shape = {tokens, engine.facts().width};
    }
    SafetensorsWriter writer(out_, std::move(tensors), {});
    std::optional<Refusal> failure;
    const auto put = [&](std::string_view name, std::int64_t position, std::int64_t width,
                         std::span<const float> values) {
      writer.write(name, static_cast<std::uint64_t>(position * width) * sizeof(float), std::as_bytes(values));
    };
    bool more = true;
    while (more) {
      if (interrupted() != 0) throw Error(ErrorKind::interrupted, "interrupted; nothing is written");
      more = engine.step([&](const Event& event) {
        if (event.kind == Event::Kind::prompt) {
          put("logits", event.position, engine.facts().vocab, event.logits);
          if (hidden_) put("hidden_pre_norm", event.position, engine.facts().width, event.hidden);
        }
        if (event.error) failure = event.error;
      });
    }
    if (failure) throw error_from(*failure);
    writer.commit();
  }

  std::string model_, ids_, out_, precision_ = "packed";
  std::int64_t prefill_step_ = 512;
  bool hidden_ = false;
  CLI::Option* ids_option_ = nullptr;
};

}  // namespace

std::unique_ptr<Verb> make_logits_verb() { return std::make_unique<LogitsVerb>(); }

}  // namespace outrider
