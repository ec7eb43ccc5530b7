#include "cli/draft_flags.h"

#include "cli/option_values.h"

namespace outrider {

void DraftFlags::define(CLI::App& verb) {
  verb.add_option("--text-drafts", text_, "drafts from repetitions of the text itself: on, off (on)")
      ->check(CLI::IsMember({"on", "off"}));
  add_whole(verb, "--num-draft-tokens", tokens_, "most drafts of a step, 0 to 8, used where they pay (3)", {0, 8});
  add_whole(verb, "--draft-vocab", vocabulary_,
            "tokens an MTP head may draft from in place of all, where that pays; 0: all (what convert --draft-vocab "
            "ranked, else 32768 of a large vocabulary)",
            kFromZero);
}

void DraftFlags::apply(LoadOptions& options) const {
  options.text_drafts = text_ == "on" ? TextDrafts::on : TextDrafts::off;
  options.draft_tokens = tokens_;
  options.draft_vocabulary_tokens = vocabulary_;
}

}  // namespace outrider
