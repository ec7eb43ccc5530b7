#include "cli/draft_flags.h"

#include "cli/option_values.h"

namespace outrider {

void DraftFlags::define(CLI::App& verb) {
  verb.add_option("--mtp", mtp_, "drafts by the model's MTP head: auto, on (refuse a model without), off (auto)")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  verb.add_option("--text-drafts", text_, "drafts from repetitions of the text itself: on, off (on)")
      ->check(CLI::IsMember({"on", "off"}));
  add_whole(verb, "--num-draft-tokens", tokens_, "most drafts of a step, used where they pay; 0: none (3)", kFromZero);
}

void DraftFlags::apply(LoadOptions& options) const {
  options.mtp = mtp_ == "on" ? MtpUse::on : mtp_ == "off" ? MtpUse::off : MtpUse::automatic;
  options.text_drafts = text_ == "on" ? TextDrafts::on : TextDrafts::off;
  options.draft_tokens = tokens_;
}

}  // namespace outrider
