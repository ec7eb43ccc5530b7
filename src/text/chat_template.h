// Chat templates: Jinja as Hugging Face writes it, by the crate `minijinja` behind our C ABI. Known differences from
// transformers: `%` does not format strings (an error says so; the filter `format` does); `~` joins floats and lists in
// Rust's spelling where Python's differs (exponents, escapes); integers beyond 128 bits do not exist.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace outrider {

enum class GenerationPrompt { no, yes };

// An immutable compiled template; safe to use from several threads. Move-only.
class ChatTemplate {
 public:
  // Compiles. Error (data) with the template's line on a syntax fault. `{% generation %}` tags are removed first
  // (transformers uses them only to mark spans).
  explicit ChatTemplate(std::string_view source);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Renders `context` = {messages: [...], tools?: [...], bos_token, eos_token, ...kwargs} as transformers'
  // apply_chat_template does (trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes, raise_exception,
  // strftime_now). Key order of objects is kept. Throws Error (usage) with the template's own message and line;
  // instruction, depth and output limits apply (serving.md section 9, rule 4).
  std::string render(const nlohmann::ordered_json& context, GenerationPrompt generation_prompt) const;

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace outrider
