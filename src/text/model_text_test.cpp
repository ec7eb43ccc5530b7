#include "text/model_text.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "text/test_data.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::golden_path;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

const Json kChat = Json::parse(R"({"messages":[{"role":"user","content":"hi"}]})");

// A model directory with the tiny byte-level tokenizer, removed at the end.
class ModelDirectory {
 public:
  ModelDirectory() {
    path_ = std::filesystem::temp_directory_path() / fmt::format("outrider-text-{}-{}", getpid(), ++made_);
    std::filesystem::create_directories(path_);
    std::filesystem::copy_file(golden_path("tiny_byte_level.tokenizer.json"), path_ / "tokenizer.json");
  }
  ~ModelDirectory() { std::filesystem::remove_all(path_); }
  ModelDirectory(const ModelDirectory&) = delete;
  void write(const char* name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
  }
  ModelText load() const { return load_model_text(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  static inline int made_ = 0;
  std::filesystem::path path_;
};

TEST(ModelText, NeedsOnlyATokenizer) {
  const ModelDirectory directory;
  const ModelText text = directory.load();
  EXPECT_FALSE(text.chat_template);
  EXPECT_TRUE(text.tokenizer_eos_ids.empty());
  EXPECT_TRUE(text.special_tokens().empty());
  const Error error = error_of([&] { text.render_chat(kChat, GenerationPrompt::no); });
  EXPECT_EQ(error.kind(), ErrorKind::data);
  EXPECT_THAT(error.what(), HasSubstr("no chat template"));
  std::filesystem::remove(directory.path() / "tokenizer.json");
  EXPECT_THAT(error_of([&] { directory.load(); }).what(), HasSubstr("tokenizer.json: No such file"));
}

TEST(ModelText, ReadsMarkersAsTextAndAsObjects) {
  const ModelDirectory directory;
  directory.write(
      "tokenizer_config.json",
      R"({"bos_token":{"content":"<|begin_of_text|>","lstrip":false},"eos_token":"<|eot_id|>","pad_token":null,
                      "chat_template":"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token is defined }}"})");
  const ModelText text = directory.load();
  EXPECT_EQ(text.bos_token, "<|begin_of_text|>");
  EXPECT_EQ(text.eos_token, "<|eot_id|>");
  EXPECT_EQ(text.pad_token, "");
  EXPECT_THAT(text.tokenizer_eos_ids, ElementsAre(text.tokenizer.id_of("<|eot_id|>")));
  EXPECT_EQ(text.render_chat(kChat, GenerationPrompt::no), "<|begin_of_text|>hi<|eot_id|>False");
  // Variables of the request win over the model's own.
  Json chat = kChat;
  chat["eos_token"] = "E";
  EXPECT_EQ(text.render_chat(chat, GenerationPrompt::no), "<|begin_of_text|>hiEFalse");
}

TEST(ModelText, TheTemplateFileWinsOverTheConfig) {
  const ModelDirectory directory;
  directory.write("tokenizer_config.json", R"({"chat_template":"config"})");
  EXPECT_EQ(directory.load().render_chat(kChat, GenerationPrompt::no), "config");
  directory.write("chat_template.jinja", "file {{ messages|length }}");
  const ModelText text = directory.load();
  EXPECT_EQ(text.render_chat(kChat, GenerationPrompt::no), "file 1");
  EXPECT_EQ(text.chat_template_source, "file {{ messages|length }}");
}

TEST(ModelText, TakesTheDefaultOfNamedTemplates) {
  const ModelDirectory directory;
  directory.write("tokenizer_config.json",
                  R"({"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]})");
  EXPECT_EQ(directory.load().render_chat(kChat, GenerationPrompt::no), "d");
  directory.write("tokenizer_config.json", R"({"chat_template":[{"name":"tool_use","template":"t"}]})");
  EXPECT_FALSE(directory.load().chat_template);
}

TEST(ModelText, ATemplateThatDoesNotCompileIsReportedWhenUsed) {
  const ModelDirectory directory;
  directory.write("chat_template.jinja", "a\n{% if %}");
  const ModelText text = directory.load();
  EXPECT_FALSE(text.chat_template);
  EXPECT_THAT(text.chat_template_fault, HasSubstr("line 2"));
  const Error error = error_of([&] { text.render_chat(kChat, GenerationPrompt::no); });
  EXPECT_EQ(error.kind(), ErrorKind::data);
  EXPECT_THAT(error.what(), HasSubstr("line 2"));
}

TEST(ModelText, AnEndTokenOutsideTheVocabularyIsIgnored) {
  const ModelDirectory directory;
  directory.write("tokenizer_config.json", R"({"eos_token":"<nowhere>"})");
  EXPECT_TRUE(directory.load().tokenizer_eos_ids.empty());
}

TEST(ModelText, RefusesMalformedConfigs) {
  const ModelDirectory directory;
  for (const char* config :
       {"", "{", "[]", "7", R"({"eos_token":7})", R"({"bos_token":{}})", R"({"bos_token":{"content":1}})",
        R"({"chat_template":7})", R"({"chat_template":[{"name":"default"}]})", R"({"chat_template":["x"]})",
        "{\"eos_token\":\"\xff\"}"}) {
    directory.write("tokenizer_config.json", config);
    const Error error = error_of([&] { directory.load(); });
    EXPECT_EQ(error.kind(), ErrorKind::data) << config;
    EXPECT_THAT(error.what(), HasSubstr("tokenizer_config.json")) << config;
  }
}

}  // namespace
}  // namespace outrider
