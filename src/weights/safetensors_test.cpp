#include "weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/stat.h>

#include <fstream>

#include "weights/json_strict.h"
#include "weights/test_files.h"

namespace outrider {
namespace {

using testing::HasSubstr;

TEST(Safetensors, ReadsUnalignedTensorsWithAPaddedHeaderAndMetadata) {
  TestDirectory dir;
  // A header of odd length and a one-byte tensor first: b lies at an odd address.
  const auto path = dir.write(
      "m.safetensors",
      safetensors_image(
          R"({"__metadata__":{"format":"mlx"},"b":{"dtype":"F32","shape":[1,2],"data_offsets":[1,9]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   )",
          9));
  const SafetensorsFile file(path);
  EXPECT_EQ(file.header().metadata.at("format"), "mlx");
  ASSERT_EQ(file.header().tensors.size(), 2u);
  EXPECT_EQ(file.header().tensors[0].name, "a");
  const StoredTensor* b = file.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, Dtype::F32);
  EXPECT_EQ(b->shape, (std::vector<std::int64_t>{1, 2}));
  const auto bytes = file.bytes(*b);
  ASSERT_EQ(bytes.size(), 8u);
  EXPECT_EQ(static_cast<int>(bytes[0]), 2);
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(Safetensors, AcceptsScalarsEmptyTensorsAndUnknownFields) {
  const std::string image = safetensors_image(
      R"({"e":{"dtype":"F32","shape":[0,3],"data_offsets":[4,4]},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4],"note":{"x":[1.5]}}})",
      4);
  const auto header = parse_safetensors(std::as_bytes(std::span(image)), "f");
  EXPECT_EQ(header.tensors.size(), 2u);
  const std::string none = safetensors_image("{}", 0);
  EXPECT_TRUE(parse_safetensors(std::as_bytes(std::span(none)), "f").tensors.empty());
}

TEST(Safetensors, WriterRoundTripsSortedPaddedAndWhole) {
  TestDirectory dir;
  const auto path = dir / "out.safetensors";
  const auto a = test_values(1, 6), z = test_values(2, 3);
  write_safetensors(path, std::vector<F32Tensor>{{"z", {3}, z}, {"a", {2, 3}, a}}, {{"k", "v\"\n"}});
  const std::string raw = read_text_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, raw.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_LT(raw.find("\"a\""), raw.find("\"z\""));
  const SafetensorsFile file(path);
  EXPECT_EQ(file.header().metadata.at("k"), "v\"\n");
  EXPECT_EQ(file.find("a")->offset % 8, 0u);
  EXPECT_EQ(std::memcmp(file.bytes(*file.find("a")).data(), a.data(), 24), 0);
  EXPECT_EQ(std::memcmp(file.bytes(*file.find("z")).data(), z.data(), 12), 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(Safetensors, UncommittedWriterLeavesNothingAndKeepsTheOldFile) {
  TestDirectory dir;
  const auto path = dir.write("out.safetensors", "old");
  {
    SafetensorsWriter writer(path, {{"a", Dtype::U8, {2}, 0, 0}}, {});
    const std::byte one{1};
    writer.write("a", 0, {&one, 1});
  }
  EXPECT_EQ(read_text_file(path), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(Safetensors, WriterFollowsLinksAndRefusesWhatIsNoRegularFile) {
  TestDirectory dir;
  const auto real = dir.write("real", "old"), link = dir / "link", fifo = dir / "fifo";
  std::filesystem::create_symlink("real", link);
  write_file_whole(link, "new");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(read_text_file(real), "new");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { write_file_whole(fifo, "x"); }), HasSubstr("fifo is not a regular file"));
  EXPECT_THAT(message_of([&] { SafetensorsWriter(fifo, {}, {}); }), HasSubstr("fifo is not a regular file"));
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  EXPECT_THAT(message_of([&] { write_file_whole(dir.path(), "x"); }), HasSubstr("is not a regular file"));
}

TEST(Safetensors, FileThatShrinksWhileOpenIsAnErrorNotAFault) {
  TestDirectory dir;
  const auto path = dir.write(
      "m.safetensors", safetensors_image(R"({"a":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}})", 100000));
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, 100);
  EXPECT_THAT(message_of([&] { file.bytes(*file.find("a")); }), HasSubstr("bytes when opened and has 100 now"));
}

// Whatever a bit flip does to a file, the answer is a header whose tensors lie in the file, or an Error.
TEST(Safetensors, MutatedFilesNeverReachOutside) {
  const std::string good = safetensors_image(
      R"({"__metadata__":{"a":"b"},"x":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},"y":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})",
      11);
  rc::check([&] {
    std::string image = good;
    const int edits = *rc::gen::inRange(1, 4);
    for (int i = 0; i < edits; ++i)
      image[*rc::gen::inRange<std::size_t>(0, image.size())] = *rc::gen::arbitrary<char>();
    image.resize(*rc::gen::inRange<std::size_t>(image.size() - 4, image.size() + 1));
    try {
      const auto header = parse_safetensors(std::as_bytes(std::span(image)), "f");
      for (const auto& t : header.tensors) RC_ASSERT(t.offset <= image.size() && t.bytes <= image.size() - t.offset);
    } catch (const Error& error) {
      RC_ASSERT(error.kind() == ErrorKind::data);
    }
  });
}

}  // namespace
}  // namespace outrider
