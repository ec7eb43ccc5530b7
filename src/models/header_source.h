// For tests: a model source of headers alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "models/model.h"
#include "weights/model_source.h"

namespace outrider {

// A model that is headers alone: every tensor by name and shape, quantized as the test says. Nothing can be loaded.
class HeaderSource final : public ModelSource {
 public:
  nlohmann::json config_json;
  std::map<std::string, ModuleInfo> modules;
  std::vector<std::string> vectors;

  const nlohmann::json& config() const override { return config_json; }
  const nlohmann::json& generation_config() const override { return null_; }
  const std::filesystem::path& path() const override { return path_; }
  std::uint64_t stored_bytes() const override { return 0; }
  bool has(std::string_view tensor) const override {
    if (std::find(vectors.begin(), vectors.end(), tensor) != vectors.end()) return true;
    return tensor.ends_with(".weight") && modules.contains(std::string(tensor.substr(0, tensor.size() - 7)));
  }
  ModuleInfo module(std::string_view path, std::int64_t n, std::int64_t k) const override {
    const ModuleInfo& info = modules.at(std::string(path));
    EXPECT_EQ(info.n, n) << path;
    EXPECT_EQ(info.k, k) << path;
    used_.insert(std::string(path) + ".weight");
    return info;
  }
  PackedWeight load_matrix(std::string_view, std::int64_t, std::int64_t, Precision) override {
    throw Error(ErrorKind::runtime, "headers only");
  }
  AlignedBuffer load_vector(std::string_view, std::int64_t) override {
    throw Error(ErrorKind::runtime, "headers only");
  }
  AlignedBuffer load_table(std::string_view, std::int64_t, std::int64_t) override {
    throw Error(ErrorKind::runtime, "headers only");
  }
  std::vector<std::string> unused_tensors() const override {
    std::vector<std::string> names = vectors;
    for (const auto& [path, info] : modules)
      if (!used_.contains(path + ".weight")) names.push_back(path + ".weight");
    return names;
  }

 private:
  nlohmann::json null_;
  std::filesystem::path path_ = "headers";
  mutable std::set<std::string> used_;
};

inline ModuleInfo quantized(std::int64_t n, std::int64_t k, int bits, int group) {
  return {PackedKind::affine, FloatType::bf16, bits, group, n, k, false};
}

// What plan_model says to a source: "accepted", or the refusal and its hint.
inline std::string refusal(const ModelSource& source) {
  try {
    plan_model(source, Precision::packed);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return std::string(error.what()) + " | " + error.hint();
  }
  return "accepted";
}

inline std::string refusal_with(HeaderSource source, const char* key, const nlohmann::json& value) {
  source.config_json[key] = value;
  return refusal(source);
}

}  // namespace outrider
