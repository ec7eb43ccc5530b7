#include "engine/engine.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "engine/chat_prompt.h"
#include "engine/core.h"
#include "engine/default_sampling.h"
#include "engine/draft_scoring.h"
#include "engine/draft_tokens.h"
#include "engine/model_text_source.h"
#include "engine/plan.h"
#include "engine/sampler.h"
#include "weights/config.h"
#include "weights/draft_ranking.h"
#include "weights/panel_source.h"

namespace outrider {
namespace {

double ms_since(Clock::time_point begin) { return ms_between(begin, Clock::now()); }

// All a model says about text, with what is gathered from its vocabulary once. Stays where it is: chat borrows text.
struct TextSide {
  std::optional<ModelText> text;
  std::optional<ChatPrompt> chat;  // there iff the text has a chat template
  std::vector<std::int32_t> newlines, indispensable;

  enum class Drafts : std::uint8_t { of_all_tokens, of_a_vocabulary };
  void load(const std::filesystem::path& model, Drafts drafts) {
    text = load_text_of(model);
    if (!text) return;
    if (text->chat_template) chat.emplace(*text);
    newlines = newline_ids(text->tokenizer);
    if (drafts == Drafts::of_a_vocabulary) indispensable = indispensable_tokens(text->tokenizer);
  }
};

// The text side loads beside the weights: neither needs the other.
class TextLoading {
 public:
  TextLoading(const std::filesystem::path& model, TextSide& side, TextSide::Drafts drafts)
      : thread_([this, model, &side, drafts] {
          const auto begin = Clock::now();
          try {
            side.load(model, drafts);
            if (side.text) ms_ = ms_since(begin);
          } catch (...) {
            failure_ = std::current_exception();
          }
        }) {}
  // Milliseconds it took; 0: no text.
  double finish() {
    thread_.join();
    if (failure_) std::rethrow_exception(failure_);
    return ms_;
  }

 private:
  double ms_ = 0;
  std::exception_ptr failure_;
  std::jthread thread_;  // last: it writes the others
};

std::vector<std::int32_t> end_tokens_of(const ModelSource& source, const std::optional<ModelText>& text,
                                        std::int64_t vocab) {
  const std::span<const std::int32_t> of_tokenizer =
      text ? std::span<const std::int32_t>(text->tokenizer_eos_ids) : std::span<const std::int32_t>();
  return stop_ids(source.config(), source.generation_config(), of_tokenizer, vocab);
}

Error no_tokenizer(const std::string& model) {
  return {ErrorKind::data, fmt::format("{} has no tokenizer", model),
          "put its tokenizer.json beside the weights, or give token ids"};
}

}  // namespace

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::failed:
      return "failed";
  }
  OUTRIDER_CHECK(false, "finish reason {}", static_cast<int>(reason));
}

std::string_view name_of(LoadTimes::Weights weights) {
  return weights == LoadTimes::Weights::mapped ? "mapped" : "packed";
}

struct Engine::Impl {
  ModelFacts facts;
  MemoryPlan plan;
  LoadTimes times;
  TextSide side;
  MemoryCharge text_charge;
  std::unique_ptr<Device> device;
  std::unique_ptr<Model> model;
  std::unique_ptr<Core> core;                 // borrows all of the above
  std::optional<PanelWriting> panel_writing;  // borrows the weights of the model
};

namespace {

ModelFacts facts_of(const ModelSource& source, const EnginePlan& plan, std::vector<std::int32_t> end_tokens) {
  const Declaration& model = plan.model.declaration;
  ModelFacts facts;
  facts.architecture = model.architecture;
  facts.path = source.path().string();
  facts.parameters = plan.model.parameters;
  facts.layers = model.layers;
  facts.width = model.width;
  facts.vocab = model.vocab;
  facts.context_tokens = plan.memory.context_tokens;
  facts.weight_bytes = plan.model.weight_bytes;
  facts.step_weight_bytes = step_weight_bytes(plan.model);
  facts.kv_bytes_per_token = plan.memory.kv_bytes_per_token;
  facts.draft_tokens = plan.limits.speculation.depth;
  facts.draft_vocabulary = plan.limits.speculation.vocabulary_rows;
  facts.end_tokens = std::move(end_tokens);
  facts.default_sampling = default_sampling(source.generation_config());
  return facts;
}

// A text larger than its estimate takes its measure instead, which the budget must hold; the context that was planned
// stays. A share of stored prefixes that nobody named gives way first.
void raise_text_part(EnginePlan& of, std::uint64_t measured, const LoadOptions& options) {
  MemoryPlan& plan = of.memory;
  std::uint64_t& planned = plan.parts[MemoryPart::text];
  if (measured <= planned) return;
  plan.planned_bytes += measured - planned;
  planned = measured;
  if (!plan.fits() && !options.prefix_cache_bytes && of.limits.prefix_bytes > 0) {
    const std::uint64_t less = std::min(of.limits.prefix_bytes, plan.planned_bytes - plan.budget_bytes);
    plan.planned_bytes -= less;
    of.limits.prefix_bytes = plan.parts[MemoryPart::prefix] -= less;
  }
  if (!plan.fits()) throw over_budget(plan);
}

std::unique_ptr<TokenChooser> make_sampler(const TextSide& side, std::int64_t vocab) {
  return std::make_unique<Sampler>(vocab, side.text ? side.text->tokenizer.size() : vocab, side.newlines);
}

}  // namespace

std::unique_ptr<Engine> Engine::load(const LoadOptions& options) {
  const auto tell = [&](std::string_view stage, double fraction) {
    if (options.progress) options.progress(stage, fraction);
  };
  const auto begin = Clock::now();
  tell("open", 0);
  const auto path = resolve_model(options.model);
  const PanelUse panels = options.precision == Precision::packed ? options.panels : PanelUse::off;
  const auto source = open_panel_source(path, panels, options.reading);
  auto impl = std::make_unique<Impl>();
  impl->device = make_cpu_device(options.threads);
  EnginePlan plan = plan_engine(options, *source, *impl->device, estimated_text_bytes(path));
  if (!plan.memory.fits()) throw over_budget(plan.memory);

  tell("load", 0.1);
  const std::int64_t draft_rows = plan.limits.speculation.vocabulary_rows;
  TextLoading text_loading(path, impl->side,
                           draft_rows > 0 ? TextSide::Drafts::of_a_vocabulary : TextSide::Drafts::of_all_tokens);
  const auto weights_begin = Clock::now();
  impl->model = load_model(*source, options.precision, *impl->device);
  impl->times.weights_ms = ms_since(weights_begin);
  impl->times.weights = source->all_from_file() ? LoadTimes::Weights::mapped : LoadTimes::Weights::packed;
  impl->times.text_ms = text_loading.finish();
  const std::optional<ModelText>& text = impl->side.text;
  impl->text_charge = MemoryCharge(text ? text->tokenizer.heap_bytes() : 0, MemoryPart::text);
  raise_text_part(plan, impl->text_charge.bytes(), options);

  const std::int64_t vocab = plan.model.declaration.vocab;
  impl->facts = facts_of(*source, plan, end_tokens_of(*source, text, vocab));
  impl->facts.has_text = text.has_value();
  impl->facts.has_chat_template = text && text->chat_template.has_value();
  impl->plan = plan.memory;
  CoreParts parts{impl->model.get(), impl->device.get(), text ? &text->tokenizer : nullptr,
                  make_sampler(impl->side, vocab), impl->facts.end_tokens};
  parts.model_key = prefix_model_key(hex(source->state_of_files()), options.precision, *impl->model);
  if (draft_rows > 0)
    parts.draft_vocabulary = draft_tokens(draft_rows, vocab, impl->side.indispensable, impl->facts.end_tokens,
                                          read_draft_ranking(path, vocab));
  impl->core = std::make_unique<Core>(std::move(parts), plan.limits);
  if (auto job = source->job()) impl->panel_writing.emplace(std::move(*job), options.interrupted);
  impl->times.load_ms = ms_since(begin);
  tell("ready", 1);
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

const ModelFacts& Engine::facts() const { return impl_->facts; }
const MemoryPlan& Engine::plan() const { return impl_->plan; }
const LoadTimes& Engine::load_times() const { return impl_->times; }

std::vector<std::int32_t> Engine::encode(std::string_view text) const {
  if (!impl_->side.text) throw no_tokenizer(impl_->facts.path);
  return impl_->side.text->tokenizer.encode(text, AddSpecial::yes, ParseSpecial::yes);
}

std::vector<std::int32_t> Engine::encode_chat(std::span<const ChatMessage> messages, std::string_view prefill) const {
  if (!impl_->side.text) throw no_tokenizer(impl_->facts.path);
  if (!impl_->side.chat)
    throw Error(ErrorKind::usage,
                impl_->side.text->chat_template_fault.empty()
                    ? fmt::format("{} has no chat template", impl_->facts.path)
                    : impl_->side.text->chat_template_fault,
                "give a plain prompt with --ignore-chat-template");
  return impl_->side.chat->encode(messages, prefill);
}

std::vector<std::int64_t> Engine::message_ends(std::span<const ChatMessage> messages,
                                               std::span<const std::int32_t> ids) const {
  const PrefixCache* cache = impl_->core->prefix_cache();
  if (cache == nullptr || cache->store().parts().any_block() || !impl_->side.chat) return {};
  return impl_->side.chat->message_ends(messages, ids);
}

std::string Engine::decode(std::span<const std::int32_t> ids) const {
  if (!impl_->side.text) throw no_tokenizer(impl_->facts.path);
  return impl_->side.text->tokenizer.decode(ids, SkipSpecial::yes);
}

void Engine::score_drafts(std::span<const std::int32_t> ids, std::span<const float> hiddens,
                          const std::function<void(const DraftRowsEvent&)>& deliver) {
  constexpr std::int64_t kChunk = 64;
  if (const NativeDraft* head = impl_->model->native_draft()) {
    const auto tokens = static_cast<std::int64_t>(ids.size());
    const std::uint64_t bytes = draft_scoring_bytes(*head, impl_->model->declaration(), *impl_->device, tokens, kChunk);
    const MemoryPlan& plan = impl_->plan;
    if (plan.planned_bytes + bytes > plan.budget_bytes)
      throw Error(ErrorKind::memory,
                  fmt::format("the MTP head's rows of {} tokens take {} bytes beside the {} planned, the budget is {}",
                              tokens, bytes, plan.planned_bytes, plan.budget_bytes),
                  "raise --memory-budget, or score a shorter text");
  }
  outrider::score_drafts(*impl_->model, *impl_->device, ids, hiddens, DraftInput::target, kChunk,
                         [&](const DraftScores& scores) { deliver({scores.position, scores.hidden, scores.logits}); });
}

Engine::DraftHead Engine::draft_head() const {
  const Speculation* speculation = impl_->core->speculation();
  if (speculation == nullptr) return {};
  return {speculation->has_head()       ? DraftHead::State::in_use
          : speculation->gave_head_up() ? DraftHead::State::given_up
                                        : DraftHead::State::none,
          speculation->rows_without_head()};
}

Result<RequestId> Engine::submit(Request request) { return impl_->core->submit(std::move(request)); }
void Engine::cancel(RequestId id) { impl_->core->cancel(id); }
std::int64_t Engine::kv_clamps() const { return impl_->core->kv_clamps(); }
bool Engine::step(const std::function<void(const Event&)>& deliver) { return impl_->core->step(deliver); }

}  // namespace outrider
