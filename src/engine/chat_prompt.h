// A conversation turned into prompt ids: rendered by the model's template, with special tokens that users spell out in
// their messages kept plain text (serving.md section 9, rule 5).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "text/model_text.h"

namespace outrider {

// Immutable after construction. Borrows the text, which must outlive it.
class ChatPrompt {
 public:
  explicit ChatPrompt(const ModelText& text);

  // Ids of the rendered messages, the generation prompt and `prefill`, the given start of the answer. Errors as
  // ModelText::render_chat().
  std::vector<std::int32_t> encode(std::span<const ChatMessage> messages, std::string_view prefill) const;

 private:
  std::string guarded(std::string_view content, std::string_view mark) const;

  const ModelText& text_;
  std::vector<std::string> specials_;  // spellings, longest first
};

}  // namespace outrider
