#include "weights/panel_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "weights/gguf_llama.h"
#include "weights/test_files.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// The user's cache is a directory of the test.
class PanelSourceTest : public testing::Test {
 protected:
  PanelSourceTest() {
    set_log(LogLevel::off, LogFormat::text);
    if (const char* cache = std::getenv("XDG_CACHE_HOME")) before_ = cache;
    setenv("XDG_CACHE_HOME", (dir_ / "cache").c_str(), 1);
    fs::create_directories(dir_ / "model");
    write_model(GgufType::Q4_1);
  }
  ~PanelSourceTest() override {
    if (before_)
      setenv("XDG_CACHE_HOME", before_->c_str(), 1);
    else
      unsetenv("XDG_CACHE_HOME");
    set_log(LogLevel::warning, LogFormat::text);
  }

  void write_model(GgufType type) { write_gguf(gguf(), TinyLlama::gguf(type)); }
  fs::path gguf() const { return dir_ / "model/m.gguf"; }
  fs::path beside() const { return dir_ / "model/.outrider/m.gguf.panels"; }
  // What lies in the user's cache.
  std::vector<fs::path> cached() const {
    std::vector<fs::path> out;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(dir_ / "cache/outrider/panels", none)) out.push_back(entry.path());
    return out;
  }

  TestDirectory dir_;
  std::optional<std::string> before_;
};

const std::vector<std::string>& modules() {
  static const std::vector<std::string> paths = {
      "model.embed_tokens",
      "model.layers.0.self_attn.q_proj",
      "model.layers.0.self_attn.k_proj",
      "model.layers.0.self_attn.v_proj",
      "model.layers.0.self_attn.o_proj",
      "model.layers.0.mlp.gate_proj",
      "model.layers.0.mlp.up_proj",
      "model.layers.0.mlp.down_proj",
  };
  return paths;
}
const std::vector<std::string>& vectors() {
  static const std::vector<std::string> names = {"model.norm.weight", "model.layers.0.input_layernorm.weight",
                                                 "model.layers.0.post_attention_layernorm.weight"};
  return names;
}

struct Loaded {
  std::vector<PackedWeight> matrices;
  std::vector<AlignedBuffer> vectors;
};
Loaded load(ModelSource& source) {
  Loaded out;
  for (const std::string& path : modules()) out.matrices.push_back(source.load_matrix(path, -1, -1, Precision::packed));
  for (const std::string& name : vectors()) out.vectors.push_back(source.load_vector(name, TinyLlama::kE));
  return out;
}
void expect_same(const Loaded& a, const Loaded& b) {
  for (std::size_t i = 0; i < modules().size(); ++i) {
    const PackedMatrix &x = a.matrices[i].view, &y = b.matrices[i].view;
    ASSERT_EQ(std::tie(x.kind, x.scale_type, x.bits, x.group, x.n, x.k),
              std::tie(y.kind, y.scale_type, y.bits, y.group, y.n, y.k));
    EXPECT_EQ(std::memcmp(x.data, y.data, x.bytes()), 0) << modules()[i];
  }
  for (std::size_t i = 0; i < vectors().size(); ++i) {
    ASSERT_EQ(a.vectors[i].size(), b.vectors[i].size());
    EXPECT_EQ(std::memcmp(a.vectors[i].data(), b.vectors[i].data(), a.vectors[i].size()), 0) << vectors()[i];
  }
}

// One start: loads the model, writes what there is to write. True: all came from the file.
bool start(const fs::path& model, PanelUse use = PanelUse::always, const std::function<bool()>& interrupted = {}) {
  const auto source = open_panel_source(model, use);
  const Loaded loaded = load(*source);
  expect_same(loaded, load(*open_stored_model(model, {}, {})));
  if (auto job = source->job()) PanelWriting(std::move(*job), interrupted);
  return source->all_from_file();
}

TEST_F(PanelSourceTest, GivesTheBytesOfTheSourceForEveryFormat) {
  for (const GgufType type :
       {GgufType::F32, GgufType::F16, GgufType::BF16, GgufType::Q4_0, GgufType::Q4_1, GgufType::Q8_0}) {
    write_model(type);
    EXPECT_FALSE(start(gguf())) << name_of(type);
    EXPECT_TRUE(start(gguf())) << name_of(type);
  }
  EXPECT_TRUE(cached().empty());
}

TEST_F(PanelSourceTest, AnswersForModulesAsTheSourceDoes) {
  for (const GgufType type : {GgufType::F16, GgufType::Q4_1}) {
    write_model(type);
    start(gguf());
    const auto panels = open_panel_source(gguf(), PanelUse::always);
    const auto source = open_stored_model(gguf(), {}, {});
    ASSERT_NE(panels->file(), nullptr);
    EXPECT_EQ(panels->unused_tensors(), source->unused_tensors());
    for (const std::string& path : modules()) {
      const ModuleInfo a = panels->module(path, -1, -1), b = source->module(path, -1, -1);
      EXPECT_EQ(std::tie(a.kind, a.type, a.bits, a.group, a.n, a.k, a.has_bias),
                std::tie(b.kind, b.type, b.bits, b.group, b.n, b.k, b.has_bias));
      const PackedMatrix planned = packed_form(a, Precision::packed);
      EXPECT_EQ(planned.bytes(), panels->load_matrix(path, -1, -1, Precision::packed).view.bytes());
    }
    for (const std::string& name : vectors()) {
      panels->load_vector(name, TinyLlama::kE);
      source->load_vector(name, TinyLlama::kE);
    }
    EXPECT_EQ(panels->unused_tensors(), source->unused_tensors());
    EXPECT_EQ(message_of([&] { panels->module(modules()[0], 41, 64); }),
              message_of([&] { source->module(modules()[0], 41, 64); }));
    EXPECT_EQ(message_of([&] { panels->load_vector(vectors()[0], 65); }),
              message_of([&] { source->load_vector(vectors()[0], 65); }));
  }
}

TEST_F(PanelSourceTest, ChargesMappedWeightsAsThoseItPacks) {
  start(gguf());
  const std::size_t before = memory_use(MemoryPart::weights).now_bytes;
  const auto charged = [&](PanelUse use) {
    const auto source = open_panel_source(gguf(), use);
    const Loaded loaded = load(*source);
    EXPECT_EQ(source->all_from_file(), use != PanelUse::off);
    return memory_use(MemoryPart::weights).now_bytes - before;
  };
  const std::size_t packed = charged(PanelUse::off);
  EXPECT_GT(packed, 0u);
  EXPECT_EQ(charged(PanelUse::always), packed);
  EXPECT_EQ(memory_use(MemoryPart::weights).now_bytes, before);
}

TEST_F(PanelSourceTest, PacksAnewWhenAnythingOfTheModelChanged) {
  EXPECT_FALSE(start(gguf()));
  EXPECT_TRUE(start(gguf()));
  fs::last_write_time(gguf(), fs::last_write_time(gguf()) + std::chrono::microseconds(1));
  EXPECT_FALSE(start(gguf())) << "time";
  EXPECT_TRUE(start(gguf()));
  const auto time = fs::last_write_time(gguf());
  fs::copy_file(gguf(), dir_ / "model/copy");
  fs::rename(dir_ / "model/copy", gguf());
  fs::last_write_time(gguf(), time);
  EXPECT_FALSE(start(gguf())) << "inode";
  EXPECT_TRUE(start(gguf()));
  GgufContents other = TinyLlama::gguf(GgufType::Q4_1);
  other.tensors[0].data[100] ^= std::byte{1};
  write_gguf(gguf(), other);
  EXPECT_FALSE(start(gguf())) << "content";
}

TEST_F(PanelSourceTest, FingerprintsTellConfigsNamesAndSizesApart) {
  const std::vector<OpenedFile> files = {{"a/m.safetensors", {100, 7, 5}}};
  const nlohmann::json config = {{"a", 1}};
  const Fingerprint base = panel_fingerprint(files, config);
  EXPECT_EQ(panel_fingerprint(std::vector<OpenedFile>{{"b/m.safetensors", {100, 7, 5}}}, config), base);
  EXPECT_NE(panel_fingerprint(files, {{"a", 2}}), base);
  for (const OpenedFile& other :
       {OpenedFile{"a/n.safetensors", {100, 7, 5}}, OpenedFile{"a/m.safetensors", {101, 7, 5}},
        OpenedFile{"a/m.safetensors", {100, 8, 5}}, OpenedFile{"a/m.safetensors", {100, 7, 6}}})
    EXPECT_NE(panel_fingerprint(std::vector{other}, config), base);
  EXPECT_NE(panel_fingerprint(std::vector{files[0], files[0]}, config), base);
}

TEST_F(PanelSourceTest, NeverWritesTheBytesOfAModelThatChangedMeanwhile) {
  const auto source = open_panel_source(gguf(), PanelUse::always);
  const Loaded loaded = load(*source);
  write_model(GgufType::Q4_1);  // the same bytes, another file
  PanelWriting(*source->job(), {});
  EXPECT_FALSE(fs::exists(beside()));
  EXPECT_TRUE(cached().empty());
}

TEST_F(PanelSourceTest, ReplacesFilesThatAreTornForeignOrDamaged) {
  start(gguf());
  std::string good;
  {
    std::ifstream in(beside(), std::ios::binary);
    good.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::string cut = good.substr(0, good.size() / 2), flipped = good, zeros(good.size(), '\0');
  flipped[good.size() - 5000] = static_cast<char>(flipped[good.size() - 5000] ^ 64);
  for (const std::string& bad : {cut, flipped, zeros, std::string(), std::string("text")}) {
    dir_.write("model/.outrider/m.gguf.panels", bad);
    EXPECT_FALSE(start(gguf()));
    EXPECT_TRUE(start(gguf()));
  }
}

TEST_F(PanelSourceTest, GoesToTheCacheWhereTheModelsDirectoryDoesNotTakeIt) {
  dir_.write("model/.outrider", "a file where the directory would be");
  EXPECT_FALSE(start(gguf()));
  ASSERT_EQ(cached().size(), 1u);
  EXPECT_THAT(cached()[0].filename().string(), testing::StartsWith("m.gguf-"));
  EXPECT_TRUE(start(gguf()));
}

TEST_F(PanelSourceTest, RunsFromMemoryWhereNoDirectoryTakesIt) {
  dir_.write("model/.outrider", "");
  dir_.write("cache", "");
  EXPECT_FALSE(start(gguf()));
  EXPECT_FALSE(start(gguf()));
  unsetenv("XDG_CACHE_HOME");
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  unsetenv("HOME");
  EXPECT_FALSE(start(gguf()));
  if (!home.empty()) setenv("HOME", home.c_str(), 1);
}

TEST_F(PanelSourceTest, LeavesDirectoriesOfLinksAlone) {
  fs::create_directories(dir_ / "links");
  fs::create_symlink(gguf(), dir_ / "links/m.gguf");
  EXPECT_FALSE(start(dir_ / "links/m.gguf"));
  EXPECT_FALSE(fs::exists(dir_ / "links/.outrider"));
  EXPECT_FALSE(fs::exists(dir_ / "model/.outrider"));
  EXPECT_EQ(cached().size(), 1u);
  EXPECT_TRUE(start(dir_ / "links/m.gguf"));
  const fs::path snapshot = dir_ / "hub/models--org--name/snapshots/0123";
  fs::create_directories(snapshot);
  fs::copy_file(gguf(), snapshot / "m.gguf");
  EXPECT_FALSE(start(snapshot / "m.gguf"));
  EXPECT_FALSE(fs::exists(snapshot / ".outrider"));
  EXPECT_EQ(cached().size(), 2u);
}

TEST_F(PanelSourceTest, WritesAutomaticallyOnlyWhatIsWorthIt) {
  EXPECT_FALSE(start(gguf(), PanelUse::automatic));
  EXPECT_FALSE(fs::exists(beside()));
  EXPECT_FALSE(start(gguf(), PanelUse::always));
  EXPECT_TRUE(start(gguf(), PanelUse::automatic)) << "a current file is used whatever its size";
  EXPECT_FALSE(start(gguf(), PanelUse::off));
}

TEST_F(PanelSourceTest, GivesUpWhenInterrupted) {
  EXPECT_FALSE(start(gguf(), PanelUse::always, [] { return true; }));
  EXPECT_FALSE(fs::exists(beside()));
  EXPECT_FALSE(fs::exists(dir_ / "model/.outrider/.m.gguf.panels.tmp"));
}

TEST_F(PanelSourceTest, KeepsNothingOfTheReferencePrecision) {
  start(gguf());
  const auto source = open_panel_source(gguf(), PanelUse::always);
  const auto stored = open_stored_model(gguf(), {}, {});
  const PackedWeight a = source->load_matrix(modules()[1], -1, -1, Precision::f32),
                     b = stored->load_matrix(modules()[1], -1, -1, Precision::f32);
  ASSERT_EQ(a.view.scale_type, FloatType::f32);
  ASSERT_EQ(a.view.bytes(), b.view.bytes());
  EXPECT_EQ(std::memcmp(a.view.data, b.view.data, a.view.bytes()), 0);
  EXPECT_EQ(source->job().has_value(), false);
}

}  // namespace
}  // namespace outrider
