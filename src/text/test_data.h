// For the tests of this room: goldens, fetched files (scripts/fetch_test_data) and the hashes goldens are written in.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"

namespace outrider::testing {

inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream.good()) << path;
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(OUTRIDER_SOURCE_DIR) / "oracles" / "goldens" / "text" / name;
}

inline nlohmann::ordered_json golden(const std::string& name) {
  return nlohmann::ordered_json::parse(file_text(golden_path(name)));
}

// Where scripts/fetch_test_data puts files; they may be absent.
inline std::filesystem::path fetched(const std::string& relative) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const auto root =
      cache && *cache ? std::filesystem::path(cache) : std::filesystem::path(home ? home : "/nonexistent") / ".cache";
  return root / "outrider" / "test-data" / relative;
}

// Skips the running test, loudly, if a fetched file is absent.
#define OUTRIDER_NEEDS(path)                                                               \
  if (!std::filesystem::exists(path)) {                                                    \
    std::cerr << "SKIPPED: " << (path) << " is absent; scripts/fetch_test_data gets it\n"; \
    GTEST_SKIP() << (path) << " is absent";                                                \
  }

inline std::string fnv(std::string_view bytes) {
  std::uint64_t value = 0xCBF29CE484222325;
  for (const char byte : bytes) value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  return fmt::format("{:016x}", value);
}

inline std::string hash_of(std::span<const std::int32_t> ids) { return fnv(fmt::format("{}", fmt::join(ids, ","))); }

// The sequences of make_goldens.py's random_ids.
inline std::vector<std::vector<std::int32_t>> random_ids(std::int32_t size) {
  std::uint64_t state = 12345;
  std::vector<std::vector<std::int32_t>> sequences(40, std::vector<std::int32_t>(24));
  for (auto& ids : sequences) {
    for (auto& id : ids) {
      state = state * 6364136223846793005 + 1442695040888963407;
      id = static_cast<std::int32_t>((state >> 32) % static_cast<std::uint64_t>(size));
    }
  }
  return sequences;
}

inline std::vector<std::string> nasty_strings() {
  return golden("strings.json").at("strings").get<std::vector<std::string>>();
}

// What `action` throws; fails the test if it throws nothing.
template <class Action>
Error error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no Error was thrown";
  return Error(ErrorKind::runtime, "");
}

}  // namespace outrider::testing
