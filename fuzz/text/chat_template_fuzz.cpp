// Chat templates: an Error, or text that is UTF-8, within the limits.
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "text/chat_template.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  static const auto context = nlohmann::ordered_json::parse(
      R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo","x":[1,2.5,null,{"a":true}]}],)"
      R"("tools":[{"name":"f"}],"bos_token":"<s>","eos_token":"</s>"})");
  try {
    const ChatTemplate chat_template({reinterpret_cast<const char*>(data), size});
    const std::string text = chat_template.render(context, GenerationPrompt::yes);
    OUTRIDER_CHECK(utf8_fault(text) == std::string::npos);
  } catch (const Error&) {
  }
  return 0;
}
