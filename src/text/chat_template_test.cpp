#include "text/chat_template.h"

#include <gmock/gmock.h>

#include <chrono>
#include <ctime>

#include "text/model_text.h"
#include "text/test_data.h"

namespace outrider {
namespace {

using testing::error_of;
using testing::fetched;
using testing::fnv;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

const Json kOneTurn = Json::parse(R"({"messages":[{"role":"user","content":"hi"}]})");

std::string rendered(const std::string& source, const Json& context = kOneTurn) {
  return ChatTemplate(source).render(context, GenerationPrompt::no);
}

// Goldens hold <today> where the oracle's run had its date.
std::string without_date(std::string text) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  for (const char* format : {"%Y-%m-%d", "%d %b %Y"}) {
    char date[32];
    std::strftime(date, sizeof date, format, &local);
    for (std::size_t at = 0; (at = text.find(date, at)) != std::string::npos;) {
      text.replace(at, std::string_view(date).size(), "<today>");
    }
  }
  return text;
}

TEST(ChatTemplate, RendersEveryFeatureAsTransformersDoes) {
  const Json features = golden("template_features.json")["features"];
  ASSERT_GT(features.size(), 50u);
  for (const Json& feature : features) {
    SCOPED_TRACE(feature["name"].get<std::string>() + ": " + feature["template"].get<std::string>());
    const auto render = [&] {
      return without_date(rendered(feature["template"].get<std::string>(), feature["context"]));
    };
    if (feature.contains("error")) {
      EXPECT_THROW(render(), Error) << feature["error"];
      continue;
    }
    try {
      EXPECT_EQ(render(), feature["text"].get<std::string>());
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

void expect_template_golden(const std::string& family, const ModelText& model) {
  const Json rows = golden("template_" + family + ".json")["rows"];
  const Json conversations = golden("conversations.json")["conversations"];
  ASSERT_EQ(rows.size(), conversations.size() * 2);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Json& conversation = conversations[i / 2];
    SCOPED_TRACE(family + ": " + conversation["name"].get<std::string>() + (i % 2 ? ", with generation prompt" : ""));
    const auto render = [&] {
      return without_date(
          model.render_chat(conversation["context"], i % 2 ? GenerationPrompt::yes : GenerationPrompt::no));
    };
    if (rows[i][0] == "error") {
      EXPECT_THROW(render(), Error) << rows[i][1];
      continue;
    }
    try {
      const std::string text = render();
      EXPECT_EQ(text.size(), rows[i][0].get<std::size_t>()) << text;
      EXPECT_EQ(fnv(text), rows[i][1].get<std::string>()) << text;
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

class FamilyTemplate : public ::testing::TestWithParam<const char*> {};

TEST_P(FamilyTemplate, RendersAsTransformersDoes) {
  const auto folder = fetched(std::string("tokenizers/") + GetParam());
  OUTRIDER_NEEDS(folder / "tokenizer.json");
  expect_template_golden(GetParam(), load_model_text(folder));
}

INSTANTIATE_TEST_SUITE_P(Templates, FamilyTemplate,
                         ::testing::Values("qwen3", "llama3", "llama3_1", "gemma3", "deepseek_v3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ChatTemplate, SaysTheLineOfASyntaxFault) {
  const Error error = error_of([] { ChatTemplate("ok\nok\n{% if %}\n"); });
  EXPECT_EQ(error.kind(), ErrorKind::data);
  EXPECT_THAT(error.what(), StartsWith("chat template: line 3: syntax error"));
}

TEST(ChatTemplate, SaysTheTemplatesOwnMessageAndLine) {
  const Error error = error_of([] { rendered("\n\n{{ raise_exception('Roles must alternate!') }}"); });
  EXPECT_EQ(error.kind(), ErrorKind::usage);
  EXPECT_STREQ(error.what(), "chat template: line 3: Roles must alternate!");
  // Also from inside a macro and a generation block.
  const Error inner = error_of([] {
    rendered(
        "{% macro m() %}\n{{ raise_exception('deep') }}\n{% endmacro %}{% generation %}\n{{ m() }}{% endgeneration %}");
  });
  EXPECT_STREQ(inner.what(), "chat template: line 2: deep");
}

TEST(ChatTemplate, GenerationTagsDoNotShiftLines) {
  const Error error = error_of([] { rendered("{% generation %}\na\n{% endgeneration %}\n{{ missing.x }}"); });
  EXPECT_THAT(error.what(), StartsWith("chat template: line 4: undefined value"));
}

TEST(ChatTemplate, RefusesContextsThatAreNotChats) {
  const ChatTemplate text("{{ messages|length }}");
  for (const char* context : {"[]", "1", R"({"messages":{}})", R"({"messages":[]})", R"({"messages":["x"]})"}) {
    EXPECT_EQ(error_of([&] { text.render(Json::parse(context), GenerationPrompt::no); }).kind(), ErrorKind::usage);
  }
  Json invalid = kOneTurn;
  invalid["messages"][0]["content"] = "\xff";
  EXPECT_THAT(error_of([&] { text.render(invalid, GenerationPrompt::no); }).what(), HasSubstr("UTF-8"));
  Json deep = kOneTurn;
  deep["x"] = Json::parse(std::string(500, '[') + std::string(500, ']'));
  EXPECT_EQ(error_of([&] { text.render(deep, GenerationPrompt::no); }).kind(), ErrorKind::usage);
}

TEST(ChatTemplate, DropsNullKeysAndNamesReasoningAsTransformersDoes) {
  const Json context = Json::parse(R"({"messages":[{"role":"a","content":null,"reasoning":"r"}]})");
  EXPECT_EQ(
      rendered("{{ messages[0].content is defined }} {{ messages[0].reasoning_content }} {{ messages[0].thinking }} "
               "{{ messages[0]|tojson }}",
               context),
      R"(False r r {"thinking": "r", "role": "a", "reasoning": "r", "reasoning_content": "r"})");
}

TEST(ChatTemplate, KeepsKeyOrder) {
  const Json context = Json::parse(R"({"messages":[{"role":"u","content":"c"}],"tools":[{"z":1,"a":{"y":2,"b":3}}]})");
  EXPECT_EQ(rendered("{{ tools|tojson }}", context), R"([{"z": 1, "a": {"y": 2, "b": 3}}])");
}

TEST(ChatTemplate, GenerationPromptIsAVariable) {
  const ChatTemplate text("{{ add_generation_prompt }}");
  EXPECT_EQ(text.render(kOneTurn, GenerationPrompt::yes), "True");
  EXPECT_EQ(text.render(kOneTurn, GenerationPrompt::no), "False");
}

TEST(ChatTemplate, EndsRunawayTemplatesSoon) {
  const char* runaways[] = {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set ns = namespace(s='x' * 1000) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ "
      "ns.s|length }}",
      "{{ 'x' * 10000000000 }}",
      "{{ 'x'.ljust(10000000000) }}",
      "{{ 'x'.center(10000000000, 'yz') }}{{ '1'.zfill(9999999999) }}",
      "{{ 'a'.replace('', 'b' * 100000) }}{% set x = 'a' * 1000000 %}{{ x.replace('a', x) }}",
      "{{ range(1000000000)|list|length }}",
      "{% set x = 'y' * 60000000 %}{% for i in range(9) %}{{ x }}{% endfor %}",
      "{% for i in range(100000) %}{{ messages|tojson(indent=60) }}{% endfor %}{% for a in range(100000) %}{% for b in "
      "range(100000) %}{% endfor %}{% endfor %}",
  };
  for (const char* source : runaways) {
    const auto start = std::chrono::steady_clock::now();
    const Error error = error_of([&] { rendered(source); });
    EXPECT_EQ(error.kind(), ErrorKind::usage) << source;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << source;
  }
  EXPECT_THAT(error_of([&] { rendered(runaways[0]); }).what(), HasSubstr("budget"));
  EXPECT_THAT(error_of([&] { rendered(runaways[8]); }).what(), HasSubstr("67108864 bytes"));
}

TEST(ChatTemplate, DeeplyNestedValuesDoNotOverflowTheStack) {
  // Values nested as deep as the budget allows are dropped, printed and compared.
  const std::string nest =
      "{% set ns = namespace(x=[]) %}{% for a in range(1000) %}{% for b in range(1000) %}"
      "{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
  for (const char* use : {"", "{{ ns.x|tojson }}", "{{ ns.x|string|length }}", "{{ ns.x == [ns.x] }}"}) {
    try {
      rendered(nest + use);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()), "");
    }
  }
}

TEST(ChatTemplate, DeepTemplatesAreErrors) {
  std::string nested;
  for (int i = 0; i < 100000; ++i) nested += "{% if true %}";
  EXPECT_EQ(error_of([&] { ChatTemplate text(nested); }).kind(), ErrorKind::data);
  const std::string parentheses = "{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}";
  EXPECT_EQ(error_of([&] { ChatTemplate text(parentheses); }).kind(), ErrorKind::data);
  std::string chain = "{{ 1";
  for (int i = 0; i < 100000; ++i) chain += "|abs";
  EXPECT_NO_THROW(try { rendered(chain + " }}"); } catch (const Error&){});
  EXPECT_EQ(error_of([] { ChatTemplate text(std::string((256 << 10) + 1, 'x')); }).kind(), ErrorKind::data);
  EXPECT_EQ(error_of([] { ChatTemplate text("\xff"); }).kind(), ErrorKind::data);
}

TEST(ChatTemplate, HasNoWayToFiles) {
  EXPECT_THROW(rendered("{% include '/etc/passwd' %}"), Error);
  EXPECT_THROW(rendered("{% import 'x' as y %}"), Error);
  EXPECT_THROW(rendered("{% extends 'x' %}"), Error);
}

TEST(ChatTemplate, SerializesLongConversationsWithinItsBudget) {
  // The most a request may hold: 4,096 messages and 128 tools.
  Json context = kOneTurn;
  for (int i = 1; i < 4096; ++i) {
    context["messages"].push_back({{"role", i % 2 ? "assistant" : "user"}, {"content", std::string(200, 'a')}});
  }
  for (int i = 0; i < 128; ++i)
    context["tools"].push_back({{"name", std::to_string(i)}, {"parameters", {{"type", "object"}}}});
  const std::string text = rendered(
      "{% for t in tools %}{{ t|tojson(indent=2) }}\n{% endfor %}{% for m in messages %}{% if m.role == 'user' %}<u>{{ "
      "m.content|trim }}</u>{% else %}<a>{{ m.content.split('x')[-1].strip() }}</a>{% endif %}\n{% endfor %}",
      context);
  EXPECT_GT(text.size(), 4096u * 200);
}

}  // namespace
}  // namespace outrider
