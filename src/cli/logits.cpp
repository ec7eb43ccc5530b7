// outrider logits MODEL --ids LIST|FILE --out X.safetensors: the conformance verb. Needs no tokenizer.
#include <cstring>

#include "cli/interrupts.h"
#include "cli/option_layers.h"
#include "cli/option_values.h"
#include "cli/reading_flags.h"
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
    mtp_flag_ = verb->add_flag("--mtp{on}", head_,
                               "write mtp1_hidden [T-1,E] and mtp1_logits [T-1,V] f32 of the MTP head too; =PATH: of "
                               "the one in this directory or file");
    reading_.define_without_mtp(*verb);
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
    options.reading = reading_.options();
    // The other verbs' --mtp says what is read: as a habit of the environment it does not ask for tensors.
    mtp_ = is_named(*mtp_flag_) && head_ != "off";
    if (options.reading.mtp_hidden && options.reading.idle == SourceOptions::Idle::refused && !mtp_)
      throw Error(ErrorKind::usage, "--mtp-hidden is given without --mtp, and no head is read",
                  "say --mtp, or --mtp-hidden auto");
    options.reading.mtp = mtp_ ? MtpUse::on : MtpUse::off;
    if (mtp_ && head_ != "on" && head_ != "auto") options.reading.mtp_path = head_;
    options.draft_tokens = 0;
    options.max_rows = 1;
    options.head_rows = 64;
    options.context_tokens = tokens;
    options.prefill_step_tokens = prefill_step_;
    const auto engine = Engine::load(options);
    if (mtp_ && tokens < 2)
      throw Error(ErrorKind::usage, "--mtp needs at least 2 ids, 1 is given", "row p pairs token p+1 with hidden p");
    std::vector<StoredTensor> tensors = outputs(*engine, tokens);
    nlohmann::ordered_json shapes;
    std::string line;
    for (const StoredTensor& tensor : tensors) {
      shapes[tensor.name] = tensor.shape;
      line += fmt::format("{}{} [{}, {}]", line.empty() ? "" : ", ", tensor.name, tensor.shape[0], tensor.shape[1]);
    }
    write(*engine, std::move(request), std::move(tensors));
    if (global.form != OutputForm::human)
      write_json({{"out", out_}, {"tensors", std::move(shapes)}});
    else
      write_stdout(fmt::format("{}: {}\n", out_, line));
    return 0;
  }

 private:
  std::vector<StoredTensor> outputs(const Engine& engine, std::int64_t tokens) const {
    const std::int64_t vocab = engine.facts().vocab, width = engine.facts().width;
    std::vector<StoredTensor> tensors;
    const auto add = [&](const char* name, std::int64_t rows, std::int64_t columns) {
      tensors.push_back({name, Dtype::F32, {rows, columns}, 0, 0});
    };
    add("logits", tokens, vocab);
    if (hidden_) add("hidden_pre_norm", tokens, width);
    if (mtp_) add("mtp1_hidden", tokens - 1, width);
    if (mtp_) add("mtp1_logits", tokens - 1, vocab);
    return tensors;
  }

  void write(Engine& engine, Request request, std::vector<StoredTensor> tensors) const {
    const std::vector<std::int32_t> ids = request.ids;
    const auto id = engine.submit(std::move(request));
    if (!id) throw error_from(id.error());
    SafetensorsWriter writer(out_, std::move(tensors), {});
    std::vector<float> hiddens;  // of all positions, for the head
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
          if (mtp_) hiddens.insert(hiddens.end(), event.hidden.begin(), event.hidden.end());
        }
        if (event.error) failure = event.error;
      });
    }
    if (failure) throw error_from(*failure);
    if (mtp_)
      engine.score_drafts(ids, hiddens, [&](const Engine::DraftRowsEvent& rows) {
        put("mtp1_hidden", rows.position, engine.facts().width, rows.hidden);
        put("mtp1_logits", rows.position, engine.facts().vocab, rows.logits);
      });
    writer.commit();
  }

  std::string model_, ids_, out_, precision_ = "packed";
  std::int64_t prefill_step_ = 512;
  bool hidden_ = false, mtp_ = false;
  std::string head_;  // on, or where it lies
  ReadingFlags reading_;
  CLI::Option *ids_option_ = nullptr, *mtp_flag_ = nullptr;
};

}  // namespace

std::unique_ptr<Verb> make_logits_verb() { return std::make_unique<LogitsVerb>(); }

}  // namespace outrider
