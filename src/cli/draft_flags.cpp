#include "cli/draft_flags.h"

#include "cli/option_layers.h"
#include "cli/option_values.h"

namespace outrider {
namespace {

// The first of `idle`, if any, has nothing to act on where `reason` is given too.
void refuse_beside(std::string_view reason, const std::vector<std::string>& idle) {
  if (!idle.empty())
    throw Error(ErrorKind::usage,
                fmt::format("{} and {} are both given, and the former leaves the latter nothing to act on", reason,
                            idle.front()),
                "leave one of them out");
}

}  // namespace

void DraftFlags::define(CLI::App& verb) {
  text_flag_ = verb.add_option("--text-drafts", text_, "drafts from repetitions of the text itself: on, off (on)")
                   ->check(CLI::IsMember({"on", "off"}));
  tokens_flag_ =
      add_whole(verb, "--num-draft-tokens", tokens_, "most drafts of a step, 0 to 8, used where they pay (3)", {0, 8});
  vocabulary_flag_ = add_whole(
      verb, "--draft-vocab", vocabulary_,
      "tokens an MTP head may draft from in place of all, where that pays; 0: all (what convert --draft-vocab "
      "ranked, else 32768 of a large vocabulary)",
      kFromZero);
}

void DraftFlags::apply(LoadOptions& options, const ReadingFlags& reading,
                       const std::vector<std::string>& of_answers) const {
  options.text_drafts = text_ == "off" ? TextDrafts::off : TextDrafts::on;
  options.draft_tokens = tokens_;
  options.draft_vocabulary_tokens = vocabulary_;
  refuse_idle(options, reading, of_answers);
  const bool named = is_named(*tokens_flag_) || is_named(*vocabulary_flag_) || !of_answers.empty();
  options.idle_drafts = named ? LoadOptions::IdleDrafts::refused : LoadOptions::IdleDrafts::ignored;
  // Who says how drafts are to be made wants some: a model that cannot draft is refused before it is loaded.
  if (!of_answers.empty() && !tokens_) options.draft_tokens = LoadOptions::kUsualDraftTokens;
}

void DraftFlags::refuse_idle(const LoadOptions& options, const ReadingFlags& reading,
                             std::vector<std::string> of_answers) const {
  std::vector<std::string> of_head;
  if (vocabulary_.value_or(0) > 0 && is_named(*vocabulary_flag_))
    of_head.push_back(fmt::format("--draft-vocab {}", *vocabulary_));
  if (options.reading.mtp == MtpUse::off) refuse_beside("--mtp off", of_head);
  if (reading.names_head()) {
    const std::string where = options.reading.mtp_path.string();
    of_head.push_back("--mtp " + (where.empty() ? "on" : where));
  }
  if (tokens_ == 0) {
    refuse_beside("--num-draft-tokens 0", of_head);
    if (text_ == "on" && is_named(*text_flag_)) refuse_beside("--num-draft-tokens 0", {"--text-drafts on"});
    refuse_beside("--num-draft-tokens 0", of_answers);
  }
  if (options.reading.mtp != MtpUse::off || text_ != "off") return;
  if (tokens_.value_or(0) > 0 && is_named(*tokens_flag_))
    of_answers.push_back(fmt::format("--num-draft-tokens {}", *tokens_));
  refuse_beside("--mtp off with --text-drafts off", of_answers);
}

}  // namespace outrider
