#include "engine/chat_prompt.h"

#include <algorithm>

#include "base/random.h"

namespace outrider {
namespace {

// Ends of so many messages before the final one are looked for: each costs a rendering and an encoding.
constexpr std::size_t kLastMessages = 3;

// A random character of the private use area U+E000..U+F8FF that none of the texts contains.
std::string unused_mark(std::span<const ChatMessage> messages, std::string_view prefill) {
  constexpr std::uint32_t kFirst = 0xE000, kCount = 0x1900;
  const auto start = static_cast<std::uint32_t>(static_cast<std::uint64_t>(random_seed()) % kCount);
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const std::uint32_t point = kFirst + (start + i) % kCount;
    const std::string mark = {static_cast<char>(0xE0 | point >> 12), static_cast<char>(0x80 | (point >> 6 & 0x3F)),
                              static_cast<char>(0x80 | (point & 0x3F))};
    const bool used = prefill.find(mark) != std::string_view::npos ||
                      std::any_of(messages.begin(), messages.end(), [&](const ChatMessage& message) {
                        return message.content.find(mark) != std::string::npos;
                      });
    if (!used) return mark;
  }
  throw Error(ErrorKind::usage, "the messages use every character of the private use area");
}

std::size_t first_character_bytes(std::string_view text) {
  std::size_t bytes = 1;
  while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) ++bytes;
  return bytes;
}

}  // namespace

ChatPrompt::ChatPrompt(const ModelText& text) : text_(text) {
  for (std::int32_t id = 0; id < text.tokenizer.size(); ++id)
    if (text.tokenizer.is_special(id) && !text.tokenizer.piece(id).empty())
      specials_.push_back(text.tokenizer.piece(id));
  std::sort(specials_.begin(), specials_.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
}

// `content` with `mark` after the first character of every special token spelled out in it.
std::string ChatPrompt::guarded(std::string_view content, std::string_view mark) const {
  std::string out;
  for (std::size_t at = 0; at < content.size();) {
    const auto hit = std::find_if(specials_.begin(), specials_.end(),
                                  [&](const std::string& special) { return content.substr(at).starts_with(special); });
    if (hit == specials_.end()) {
      out += content[at++];
      continue;
    }
    const std::size_t head = first_character_bytes(*hit);
    out.append(*hit, 0, head).append(mark).append(*hit, head);
    at += hit->size();
  }
  return out;
}

std::vector<std::int32_t> ChatPrompt::encode(std::span<const ChatMessage> messages, std::string_view prefill) const {
  return ids_of(messages, prefill, GenerationPrompt::yes);
}

std::vector<std::int64_t> ChatPrompt::message_ends(std::span<const ChatMessage> messages,
                                                   std::span<const std::int32_t> ids) const {
  std::vector<std::int64_t> ends;
  for (std::size_t count = 1; count < messages.size(); ++count) {
    if (count > 1 && count + kLastMessages < messages.size()) continue;
    try {
      const std::vector<std::int32_t> start = ids_of(messages.first(count), {}, GenerationPrompt::no);
      const auto differ = std::mismatch(start.begin(), start.end(), ids.begin(), ids.end());
      ends.push_back(differ.second - ids.begin());
    } catch (const Error&) {
    }
  }
  std::sort(ends.begin(), ends.end());
  return ends;
}

std::vector<std::int32_t> ChatPrompt::ids_of(std::span<const ChatMessage> messages, std::string_view prefill,
                                             GenerationPrompt generation_prompt) const {
  const std::string mark = unused_mark(messages, prefill);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages)
    list.push_back({{"role", message.role}, {"content", guarded(message.content, mark)}});
  std::string rendered = text_.render_chat({{"messages", std::move(list)}}, generation_prompt);
  rendered += guarded(prefill, mark);

  // Everything but the marked spellings is encoded as transformers does; those are plain text.
  std::vector<std::int32_t> ids;
  const auto append = [&](std::string_view piece, ParseSpecial parse) {
    if (piece.empty()) return;
    const auto more = text_.tokenizer.encode(piece, AddSpecial::no, parse);
    ids.insert(ids.end(), more.begin(), more.end());
  };
  std::string_view rest = rendered;
  for (std::size_t at = rest.find(mark); at != std::string_view::npos; at = rest.find(mark)) {
    const auto hit = std::find_if(specials_.begin(), specials_.end(), [&](const std::string& special) {
      const std::size_t head = first_character_bytes(special);
      return at >= head && rest.substr(at - head, head) == special.substr(0, head) &&
             rest.substr(at + mark.size()).starts_with(std::string_view(special).substr(head));
    });
    if (hit == specials_.end()) {  // the template cut or changed the spelling: only the mark goes
      append(rest.substr(0, at), ParseSpecial::yes);
      rest.remove_prefix(at + mark.size());
      continue;
    }
    const std::size_t head = first_character_bytes(*hit);
    append(rest.substr(0, at - head), ParseSpecial::yes);
    append(*hit, ParseSpecial::no);
    rest.remove_prefix(at + mark.size() + hit->size() - head);
  }
  append(rest, ParseSpecial::yes);
  return ids;
}

}  // namespace outrider
