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

  // Where the first message and the last ones before the final one end in `ids`, which encode() made of `messages`: as
  // far as a prompt of the messages up to there has the same ids. Ascending. A template that does not render them alone
  // has no such place.
  std::vector<std::int64_t> message_ends(std::span<const ChatMessage> messages,
                                         std::span<const std::int32_t> ids) const;

 private:
  std::vector<std::int32_t> ids_of(std::span<const ChatMessage> messages, std::string_view prefill,
                                   GenerationPrompt generation_prompt) const;
  std::string guarded(std::string_view content, std::string_view mark) const;

  const ModelText& text_;
  std::vector<std::string> specials_;  // spellings, longest first
};

}  // namespace outrider
