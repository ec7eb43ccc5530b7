#include "base/text_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"

namespace outrider {
namespace {

TEST(TextFile, ReadsAWholeFileAndRefusesWhatIsLargerOrMissing) {
  const auto path = std::filesystem::temp_directory_path() / ("outrider-text-file-" + std::to_string(getpid()));
  std::ofstream(path, std::ios::binary) << std::string("a\0b\n", 4);
  EXPECT_EQ(read_text_file(path, 4), std::string("a\0b\n", 4));
  try {
    read_text_file(path, 3);
    ADD_FAILURE() << "a file above the limit was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_NE(std::string(error.what()).find("4 bytes, the limit is 3"), std::string::npos) << error.what();
  }
  std::ofstream(path, std::ios::trunc);
  EXPECT_EQ(read_text_file(path), "");
  std::filesystem::remove(path);
  EXPECT_THROW(read_text_file(path), Error);
  EXPECT_THROW(read_text_file(path.parent_path()), Error);
}

}  // namespace
}  // namespace outrider
