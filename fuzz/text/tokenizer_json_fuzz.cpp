// tokenizer.json: an Error, or a tokenizer that encodes, decodes and streams.
#include <string_view>

#include "base/error.h"
#include "text/text_stream.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  try {
    const Tokenizer tokenizer = Tokenizer::from_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    for (const ParseSpecial parse : {ParseSpecial::no, ParseSpecial::yes}) {
      const auto ids = tokenizer.encode("Hello  w\u00f6rld \U0001f600 <s>aab\n", AddSpecial::yes, parse);
      tokenizer.decode(ids, SkipSpecial::yes);
      TextStream stream(tokenizer, SkipSpecial::no);
      for (const std::int32_t id : ids) stream.push(id);
      stream.finish();
    }
  } catch (const Error&) {
  }
  return 0;
}
