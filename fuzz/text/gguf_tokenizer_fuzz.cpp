// GGUF tokenizer metadata: whatever it says, an Error or a tokenizer that loads and whose text round-trips.
// Input, so that a corpus can be read: lines of a letter, a space and a value; see `read`.
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/gguf_tokenizer.h"
#include "text/text_stream.h"
#include "text/tokenizer.h"

namespace {

using namespace outrider;

std::int64_t number(std::string_view text) { return std::strtoll(std::string(text).c_str(), nullptr, 10); }

GgufTokenizer read(std::string_view input) {
  GgufTokenizer metadata;
  while (!input.empty()) {
    const std::size_t end = std::min(input.find('\n'), input.size());
    const std::string_view line = input.substr(0, end);
    input.remove_prefix(std::min(end + 1, input.size()));
    if (line.size() < 2) continue;
    const std::string_view value = line.substr(2);
    switch (line[0]) {
      case 'M':
        metadata.model = value;
        break;
      case 'P':
        metadata.pre = value;
        break;
      case 't':
        metadata.tokens.emplace_back(value);
        break;
      case 'm':
        metadata.merges.emplace_back(value);
        break;
      case 's':
        metadata.scores.push_back(std::strtof(std::string(value).c_str(), nullptr));
        break;
      case 'y':
        metadata.token_types.push_back(static_cast<std::int32_t>(number(value)));
        break;
      case 'b':
        metadata.bos_token_id = number(value);
        break;
      case 'e':
        metadata.eos_token_id = number(value);
        break;
      case 'o':
        metadata.eot_token_id = number(value);
        break;
      case 'u':
        metadata.unknown_token_id = number(value);
        break;
      case 'p':
        metadata.padding_token_id = number(value);
        break;
      case 'B':
        metadata.add_bos_token = number(value) != 0;
        break;
      case 'E':
        metadata.add_eos_token = number(value) != 0;
        break;
      case 'S':
        metadata.add_space_prefix = number(value) != 0;
        break;
      case 'c':
        metadata.chat_template = value;
        break;
      // All bytes of a sentencepiece vocabulary, so that short inputs make whole ones.
      case 'x':
        for (int byte = 0; byte < 256; ++byte) {
          metadata.tokens.push_back(fmt::format("<0x{:02X}>", byte));
          metadata.token_types.push_back(6);
          metadata.scores.push_back(0);
        }
        break;
      default:
        break;
    }
  }
  return metadata;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const GgufTokenizer metadata = read({reinterpret_cast<const char*>(data), size});
  TokenizerFiles files;
  try {
    files = tokenizer_files_from_gguf(metadata);
  } catch (const Error&) {
    return 0;
  }
  // What the converter accepts must load, and stream as it decodes.
  const Tokenizer tokenizer = Tokenizer::from_json(files.tokenizer_json, "fuzz");
  const auto ids = tokenizer.encode("Hello  w\u00f6rld \U0001f600 aab\n", AddSpecial::yes, ParseSpecial::yes);
  TextStream stream(tokenizer, SkipSpecial::no);
  std::string streamed;
  for (const std::int32_t id : ids) streamed += stream.push(id);
  streamed += stream.finish();
  OUTRIDER_CHECK(streamed == tokenizer.decode(ids, SkipSpecial::no));
  return 0;
}
