#include "weights/local_models.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "weights/model_source.h"
#include "weights/test_files.h"

namespace outrider {
namespace {

using testing::HasSubstr;

// Caches of its own for the test; the environment is restored.
class LocalModels : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
      if (const char* value = std::getenv(name)) saved_.emplace_back(name, value);
      if (std::string_view(name) != "HOME") unsetenv(name);
    }
    setenv("XDG_CACHE_HOME", dir_.path().c_str(), 1);
  }
  void TearDown() override {
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) unsetenv(name);
    for (const auto& [name, value] : saved_) setenv(name.c_str(), value.c_str(), 1);
  }
  void add_hub(const std::string& hub, const std::string& folder, const std::string& revision,
               const std::string& file) {
    dir_.write(fmt::format("{}/models--{}/refs/main", hub, folder), revision + "\n");
    dir_.write(fmt::format("{}/models--{}/snapshots/{}/config.json", hub, folder, revision), "{}");
    dir_.write(fmt::format("{}/models--{}/snapshots/{}/{}", hub, folder, revision, file), "12345678");
  }
  TestDirectory dir_;
  std::vector<std::pair<std::string, std::string>> saved_;
};

TEST_F(LocalModels, WithoutAHomeThereIsNoCacheRatherThanOneInTheCurrentDirectory) {
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  try {
    list_local_models();
    ADD_FAILURE() << "listed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("neither HOME nor XDG_CACHE_HOME"));
  }
}

TEST_F(LocalModels, AreListedFromBothCachesByTheSnapshotOfMain) {
  add_hub("huggingface/hub", "org--Name-1B", "abc", "model.safetensors");
  add_hub("huggingface/hub", "org--Quant", "def", "q4.gguf");
  dir_.write("huggingface/hub/models--org--Broken/refs/main", "../../..");
  dir_.write("outrider/models/Small-Q4_1/config.json", "{}");
  dir_.write("outrider/models/Small-Q4_1/model.safetensors", "x");
  dir_.write("outrider/models/empty/readme", "");
  const auto models = list_local_models();
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models[0].name, "Small-Q4_1");
  EXPECT_EQ(models[0].origin, "outrider");
  EXPECT_EQ(models[1].name, "org/Name-1B");
  EXPECT_EQ(models[1].path, dir_ / "huggingface/hub/models--org--Name-1B/snapshots/abc");
  EXPECT_EQ(models[1].bytes, 10u);
  EXPECT_EQ(models[2].name, "org/Quant/q4.gguf");
}

TEST_F(LocalModels, ResolveByPathFullNameOrUniquePart) {
  add_hub("huggingface/hub", "org--Name-1B", "abc", "model.safetensors");
  add_hub("huggingface/hub", "org--Name-1B-chat", "abc", "model.safetensors");
  EXPECT_EQ(resolve_model(dir_.path().string()), dir_.path());
  EXPECT_EQ(resolve_model("org/name-1b"), dir_ / "huggingface/hub/models--org--Name-1B/snapshots/abc");
  EXPECT_EQ(resolve_model("CHAT"), dir_ / "huggingface/hub/models--org--Name-1B-chat/snapshots/abc");
  try {
    resolve_model("name");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr("'name' matches 2 local models: org/Name-1B, org/Name-1B-chat"));
  }
  try {
    resolve_model("absent");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.what(), HasSubstr((dir_ / "outrider/models").string()));
  }
}

TEST_F(LocalModels, TheHubCacheFollowsItsVariablesInOrder) {
  EXPECT_EQ(huggingface_cache(), dir_ / "huggingface/hub");
  setenv("HF_HOME", "/a", 1);
  EXPECT_EQ(huggingface_cache(), "/a/hub");
  setenv("HF_HUB_CACHE", "/b", 1);
  EXPECT_EQ(huggingface_cache(), "/b");
}

}  // namespace
}  // namespace outrider
