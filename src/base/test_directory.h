// For tests: a fresh directory that is removed with everything in it.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"

namespace outrider {

class TestDirectory {
 public:
  TestDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "outrider-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw Error(ErrorKind::runtime, "cannot make a directory " + name);
    path_ = name;
  }
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Writes a file below the directory, making the directories on the way; returns its path.
  std::filesystem::path write(const std::string& file, std::string_view content) const {
    const std::filesystem::path target = path_ / file;
    std::filesystem::create_directories(target.parent_path());
    std::ofstream out(target, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    if (!out) throw Error(ErrorKind::runtime, "cannot write " + target.string());
    return target;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace outrider
