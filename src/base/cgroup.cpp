#include "base/cgroup.h"

#include <charconv>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {
namespace {

namespace fs = std::filesystem;

// A whole number, or nothing: "max", "-1", a missing file.
std::optional<std::size_t> positive(std::string_view word) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size() || value == 0) return std::nullopt;
  return value;
}

std::vector<std::string> words_of(const fs::path& file) {
  std::ifstream in(file);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::optional<std::size_t> number_in(const fs::path& file) {
  const auto words = words_of(file);
  return words.size() == 1 ? positive(words[0]) : std::nullopt;
}

std::optional<double> ratio(std::optional<std::size_t> quota, std::optional<std::size_t> period) {
  if (!quota || !period) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::optional<double> cpu_v2(const fs::path& group) {
  const auto words = words_of(group / "cpu.max");  // "max 100000" or "150000 100000"
  return words.size() == 2 ? ratio(positive(words[0]), positive(words[1])) : std::nullopt;
}

std::optional<double> cpu_v1(const fs::path& group) {
  return ratio(number_in(group / "cpu.cfs_quota_us"), number_in(group / "cpu.cfs_period_us"));
}

std::optional<std::size_t> memory_v2(const fs::path& group) { return number_in(group / "memory.max"); }
std::optional<std::size_t> memory_v1(const fs::path& group) { return number_in(group / "memory.limit_in_bytes"); }

template <class Value>
void note_least(std::optional<Value>& least, std::optional<Value> value) {
  if (value && (!least || *value < *least)) least = value;
}

// The least value of root and of every group from it down to root/own, as far as they exist.
template <class Read>
auto tightest(const fs::path& root, const fs::path& own, Read read) {
  auto least = read(root);
  fs::path group = root;
  for (const fs::path& part : own.relative_path()) {
    if (part == "..") break;  // the own group lies outside the visible tree
    note_least(least, read(group /= part));
  }
  return least;
}

// `controller` is the v1 name of the tree.
template <class ReadV2, class ReadV1>
auto tightest_of_own(const CgroupFiles& files, std::string_view controller, ReadV2 read_v2, ReadV1 read_v1) {
  decltype(read_v2(files.tree)) least;
  std::ifstream in(files.own);
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path own = line.substr(second + 1);
    if (controllers.empty()) {
      note_least(least, tightest(files.tree, own, read_v2));
    } else if (("," + controllers + ",").find("," + std::string(controller) + ",") != std::string::npos) {
      // The tree is mounted under the full list ("cpu,cpuacct") or under the one name.
      note_least(least, tightest(files.tree / controllers, own, read_v1));
      note_least(least, tightest(files.tree / controller, own, read_v1));
    }
  }
  return least;
}

}  // namespace

std::optional<double> cpu_quota(const CgroupFiles& files) { return tightest_of_own(files, "cpu", cpu_v2, cpu_v1); }

std::optional<std::size_t> memory_limit(const CgroupFiles& files) {
  return tightest_of_own(files, "memory", memory_v2, memory_v1);
}

}  // namespace outrider
