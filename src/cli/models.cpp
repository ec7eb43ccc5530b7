// outrider models list | info MODEL: what lies on this machine. Headers only, never tensor data.
#include "models/model.h"

#include <cstdio>

#include "cli/reading_flags.h"
#include "cli/verb.h"
#include "engine/draft_tokens.h"
#include "weights/draft_ranking.h"
#include "weights/local_models.h"
#include "weights/panel_source.h"

namespace outrider {
namespace {

class ModelsVerb : public Verb {
 public:
  CLI::App* define(CLI::App& program) override {
    CLI::App* verb = program.add_subcommand("models", "the models on this machine");
    verb->require_subcommand(1);
    list_ = verb->add_subcommand("list", "models in the local caches");
    list_->add_flag("--paths", paths_, "their paths too");
    info_ = verb->add_subcommand("info", "parameters, bytes per kind, context, memory per token");
    info_->add_option("model,--model", model_, "directory, .gguf file, or local model");
    reading_.define(*info_);
    // Their arguments are taken as they come: the answer is the same for all of them.
    for (const char* name : {"get", "rm"})
      verb->add_subcommand(name, "not available in this version")->prefix_command();
    return verb;
  }

  int run(const GlobalOptions& global) override {
    if (list_->parsed()) return list(global);
    if (info_->parsed()) return info(global);
    throw Error(ErrorKind::usage, "models get and models rm are not available in this version",
                "put a model directory or a .gguf file anywhere and name its path");
  }

 private:
  int list(const GlobalOptions& global) const {
    const std::vector<LocalModel> models = list_local_models();
    if (global.form != OutputForm::human) {
      nlohmann::ordered_json all = nlohmann::ordered_json::array();
      for (const LocalModel& model : models)
        all.push_back(
            {{"name", model.name}, {"path", model.path.string()}, {"origin", model.origin}, {"bytes", model.bytes}});
      write_json({{"models", std::move(all)}});
      return 0;
    }
    std::string lines;
    for (const LocalModel& model : models)
      lines += fmt::format("{:<50} {:>10}  {}{}\n", model.name, human_bytes(model.bytes), model.origin,
                           paths_ ? "  " + model.path.string() : std::string());
    if (lines.empty() && !global.quiet)
      std::fprintf(stderr, "no models in %s or %s\n", huggingface_cache().c_str(), outrider_cache().c_str());
    write_stdout(lines);
    return 0;
  }

  int info(const GlobalOptions& global) const {
    const auto path = resolve_model(required_model(model_));
    const auto source = open_panel_source(path, PanelUse::automatic, reading_.options());
    const ModelPlan plan = plan_model(*source, Precision::packed);
    if (global.form == OutputForm::human)
      write_stdout(info_table(path, *source, plan));
    else
      write_json(info_document(path, *source, plan));
    return 0;
  }

  static nlohmann::ordered_json info_document(const std::filesystem::path& path, const PanelSource& source,
                                              const ModelPlan& plan) {
    const Declaration& model = plan.declaration;
    nlohmann::ordered_json bytes;
    for (const auto& [kind, count] : plan.bytes_by_kind) bytes[kind] = count;
    return {{"architecture", model.architecture},
            {"parameters", plan.parameters},
            {"bytes", std::move(bytes)},
            {"context_tokens", model.context_tokens},
            {"kv_bytes_per_token", model.kv.token_bytes()},
            {"recurrent_bytes_per_row", model.recurrent.slot_bytes()},
            {"checkpoint", checkpoint_document(source.facts(), path, model.vocab)},
            {"path", path.string()},
            {"stored_bytes", source.stored_bytes()},
            {"packed_bytes", plan.weight_bytes},
            {"panel_file", source.file() != nullptr ? nlohmann::ordered_json(source.file()->path().string())
                                                    : nlohmann::ordered_json()},
            {"layers", model.layers},
            {"width", model.width},
            {"vocab", model.vocab}};
  }

  // What is known of a head, and why it is not used where it is not (models.md 4.6).
  static std::string head_line(const MtpFacts& head) {
    switch (head.state) {
      case HeadState::absent:
        return "none (looked for " + head.detail + ")";
      case HeadState::ready:
        return fmt::format("ready, in {}, norms {}, hidden {} by {}", head.place, name_of(head.norms),
                           name_of(head.tap), head.tap_origin);
      case HeadState::ambiguous:
        return fmt::format("not used, in {}: {}", head.place, head.detail);
      case HeadState::off:
        return fmt::format("off, in {}", head.place);
    }
    OUTRIDER_CHECK(false, "head state {}", static_cast<int>(head.state));
  }

  // The tokens that drafts of a ready head are taken from unless --draft-vocab says otherwise.
  struct DraftVocabulary {
    std::int64_t tokens = 0;  // 0: all
    std::string origin;
  };
  static DraftVocabulary draft_vocabulary(const std::filesystem::path& path, std::int64_t vocab) {
    const std::int64_t ranked = std::ssize(read_draft_ranking(path, vocab));
    const std::int64_t tokens = draft_token_count({}, vocab, ranked);
    return {tokens, ranked > 0 ? kDraftRankingFile : tokens > 0 ? "the size of the vocabulary" : "default"};
  }

  static nlohmann::ordered_json checkpoint_document(const CheckpointFacts* facts, const std::filesystem::path& path,
                                                    std::int64_t vocab) {
    if (facts == nullptr) return nullptr;
    nlohmann::ordered_json head = {{"state", name_of(facts->mtp.state)}};
    if (!facts->mtp.place.empty()) head["place"] = facts->mtp.place;
    if (!facts->mtp.detail.empty()) head["detail"] = facts->mtp.detail;
    if (facts->mtp.state == HeadState::ready) {
      const DraftVocabulary drafts = draft_vocabulary(path, vocab);
      head["norms"] = name_of(facts->mtp.norms);
      head["draft_vocabulary_tokens"] = drafts.tokens > 0 ? drafts.tokens : vocab;
      head["draft_vocabulary_origin"] = drafts.origin;
      head["hidden_tap"] = name_of(facts->mtp.tap);
      head["hidden_tap_origin"] = facts->mtp.tap_origin;
    }
    return {{"layout", name_of(facts->layout)},
            {"layout_origin", facts->layout_origin},
            {"norms", name_of(facts->norms)},
            {"l2_eps", name_of(facts->l2_eps)},
            {"mtp", std::move(head)}};
  }

  static std::string info_table(const std::filesystem::path& path, const PanelSource& source, const ModelPlan& plan) {
    const Declaration& model = plan.declaration;
    std::string out;
    const auto row = [&](std::string_view name, const std::string& value) {
      out += fmt::format("{:<14} {}\n", name, value);
    };
    row("path", path.string());
    row("architecture", fmt::format("{}, {} layers, width {}, vocabulary {}", model.architecture, model.layers,
                                    model.width, model.vocab));
    row("parameters", std::to_string(plan.parameters));
    for (const auto& [kind, count] : plan.bytes_by_kind)
      row(kind, fmt::format("{} bytes ({})", count, human_bytes(count)));
    row("packed", fmt::format("{} bytes ({}), {} stored", plan.weight_bytes, human_bytes(plan.weight_bytes),
                              source.stored_bytes()));
    row("panel file", source.file() != nullptr ? source.file()->path().string() : std::string("none"));
    row("context", fmt::format("{} tokens", model.context_tokens));
    row("KV per token", fmt::format("{} bytes", model.kv.token_bytes()));
    if (model.recurrent.layers > 0)
      row("state per row", fmt::format("{} bytes ({}), and as much per verified position", model.recurrent.slot_bytes(),
                                       human_bytes(model.recurrent.slot_bytes())));
    if (const CheckpointFacts* facts = source.facts()) {
      row("layout", fmt::format("{} by {}, norms {}, l2 epsilon {}", name_of(facts->layout), facts->layout_origin,
                                name_of(facts->norms), name_of(facts->l2_eps)));
      row("MTP head", head_line(facts->mtp));
      if (facts->mtp.state == HeadState::ready) {
        const DraftVocabulary drafts = draft_vocabulary(path, model.vocab);
        row("drafts from", drafts.tokens > 0 ? fmt::format("{} of {} tokens by {}, where that pays", drafts.tokens,
                                                           model.vocab, drafts.origin)
                                             : fmt::format("all {} tokens", model.vocab));
      }
    }
    return out;
  }

  std::string model_;
  bool paths_ = false;
  ReadingFlags reading_;
  CLI::App *list_ = nullptr, *info_ = nullptr;
};

}  // namespace

std::unique_ptr<Verb> make_models_verb() { return std::make_unique<ModelsVerb>(); }

}  // namespace outrider
