#include "cli/prompt_cache_flag.h"

#include "cli/verb.h"

namespace outrider {

void PromptCacheFlag::define(CLI::App& verb) {
  verb.add_option(
      "--prompt-cache-bytes", bytes_,
      without_ == Default::share
          ? "memory that earlier prompts and answers may keep for later ones, 0: none (a quarter of what the smallest "
            "context leaves of the budget; a context that is named may leave less)"
          : "memory that prompt and answer may keep for later ones (0)");
}

void PromptCacheFlag::apply(LoadOptions& options) const {
  if (!bytes_.empty())
    options.prefix_cache_bytes = bytes_ == "0" ? 0 : bytes_from(bytes_);
  else if (without_ == Default::share)
    options.prefix_cache_bytes.reset();
}

}  // namespace outrider
