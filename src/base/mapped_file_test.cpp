#include "base/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/test_directory.h"

namespace outrider {
namespace {

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::string refusal_of(const std::filesystem::path& path) {
  try {
    const MappedFile file(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.what();
  }
  return "no error";
}

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  const TestDirectory directory;
  const MappedFile file(directory.write("a", "some bytes"));
  EXPECT_EQ(text_of(file), "some bytes");
  EXPECT_EQ(file.path(), directory.path() / "a");
}

TEST(MappedFile, FollowsLinksAndTakesEmptyFiles) {
  const TestDirectory directory;
  directory.write("a", "some bytes");
  std::filesystem::create_symlink("a", directory.path() / "link");
  EXPECT_EQ(text_of(MappedFile(directory.path() / "link")), "some bytes");
  EXPECT_TRUE(MappedFile(directory.write("empty", "")).bytes().empty());
}

TEST(MappedFile, RefusesWhatIsNoReadableFile) {
  const TestDirectory directory;
  EXPECT_THAT(refusal_of(directory.path() / "missing"), testing::HasSubstr("cannot open"));
  EXPECT_THAT(refusal_of(directory.path()), testing::HasSubstr("is not a regular file"));
  ASSERT_EQ(mkfifo((directory.path() / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(refusal_of(directory.path() / "fifo"), testing::HasSubstr("is not a regular file"));
  EXPECT_THAT(refusal_of("/dev/zero"), testing::HasSubstr("is not a regular file"));
}

TEST(MappedFile, MovesItsMapping) {
  const TestDirectory directory;
  MappedFile file(directory.write("a", "first"));
  MappedFile other(directory.write("b", "second"));
  const std::byte* data = other.bytes().data();
  file = std::move(other);
  EXPECT_EQ(text_of(file), "second");
  EXPECT_EQ(file.bytes().data(), data);
  EXPECT_TRUE(other.bytes().empty());  // NOLINT: the state after a move is the subject
}

TEST(MappedFile, ShowsTheSameBytesAfterDroppingPages) {
  const TestDirectory directory;
  std::string content(300000, 'x');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7);
  const MappedFile file(directory.write("a", content));
  constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
  for (const auto& [offset, length] :
       {std::pair<std::size_t, std::size_t>{0, 0}, {5000, 100000}, {0, kAll}, {299999, kAll}, {kAll, 1}, {300000, 5}}) {
    EXPECT_EQ(text_of(file), content);
    file.drop_pages(offset, length);
  }
  EXPECT_EQ(text_of(file), content);
}

TEST(MappedFile, ShowsTheSameBytesWhateverItIsAskedToPrepare) {
  const TestDirectory directory;
  const std::string content(5 << 20, 'p');
  const MappedFile file(directory.write("a", content));
  file.prefer_large_pages();
  constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
  for (const auto& [offset, length] : {std::pair<std::size_t, std::size_t>{0, kAll}, {4097, 1}, {content.size(), 1}})
    EXPECT_TRUE(file.populate(offset, length));
  EXPECT_EQ(text_of(file), content);
}

TEST(FileIdentity, ChangesWithTheFileAndStaysWithAnOpenOne) {
  const TestDirectory directory;
  const std::filesystem::path path = directory.write("a", "some bytes");
  const MappedFile file(path);
  EXPECT_EQ(file_identity(path), file.identity());
  EXPECT_EQ(file.identity().bytes, 10u);
  // Other bytes in place, with the old time of modification put back.
  const auto modified = std::filesystem::last_write_time(path);
  directory.write("a", "more bytes");
  std::filesystem::last_write_time(path, modified);
  EXPECT_NE(file_identity(path), file.identity());
  directory.write("b", "some bytes");
  std::filesystem::rename(directory.path() / "b", path);
  EXPECT_NE(file_identity(path), file.identity());
  EXPECT_EQ(file_identity(directory.path() / "missing"), FileIdentity{});
}

}  // namespace
}  // namespace outrider
