#include "cli/draft_flags.h"

#include "cli/option_values.h"

namespace outrider {

void DraftFlags::define(CLI::App& verb) {
  verb.add_option("--text-drafts", text_, "drafts from repetitions of the text itself: on, off (on)")
      ->check(CLI::IsMember({"on", "off"}));
  add_whole(verb, "--num-draft-tokens", tokens_, "most drafts of a step, 0 to 8, used where they pay (3)", {0, 8});
}

void DraftFlags::apply(LoadOptions& options) const {
  options.text_drafts = text_ == "on" ? TextDrafts::on : TextDrafts::off;
  options.draft_tokens = tokens_;
}

}  // namespace outrider
