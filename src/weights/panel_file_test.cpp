#include "weights/panel_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "base/memory.h"
#include "weights/pack.h"
#include "weights/panel_index.h"
#include "weights/test_files.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

PackedMatrix form(PackedKind kind, FloatType type, int bits, int group, std::int64_t n, std::int64_t k) {
  PackedMatrix out;
  out.kind = kind;
  out.scale_type = type;
  out.bits = bits;
  out.group = group;
  out.n = n;
  out.k = k;
  return out;
}

// Entries of every kind, with bytes of their own; together more than two pieces.
struct Contents {
  std::vector<PanelContent> list;
  std::vector<std::vector<std::byte>> bytes;

  Contents() {
    add("v.norm", PanelEntryKind::vector, form(PackedKind::dense, FloatType::f32, 0, 0, 50, 1));
    for (const int bits : {2, 3, 4, 5, 6, 8})
      add("a.affine" + std::to_string(bits), PanelEntryKind::matrix,
          form(PackedKind::affine, FloatType::bf16, bits, 64, 100, 128));
    add("m.e2m1", PanelEntryKind::matrix, form(PackedKind::e2m1, FloatType::f32, 4, 16, 17, 32));
    add("z.dense", PanelEntryKind::matrix, form(PackedKind::dense, FloatType::f16, 0, 0, 1000, 2500));
  }
  void add(const std::string& name, PanelEntryKind kind, const PackedMatrix& shape) {
    PanelContent content;
    content.entry.name = name;
    content.entry.kind = kind;
    content.entry.form = shape;
    std::vector<std::byte>& data = bytes.emplace_back(content.entry.bytes());
    for (std::size_t i = 0; i < data.size(); ++i)
      data[i] = static_cast<std::byte>((i * 2654435761u + bytes.size() * 40503u) >> 13);
    content.data = data.data();
    list.push_back(content);
  }
};

// Without the remedy, which nobody is told: such a file is written anew.
std::string fact_of_refusal(const std::string& image) {
  const std::string message = message_of([&] { parse_panels(std::as_bytes(std::span(image)), "F"); });
  return message.substr(0, message.find(" | "));
}

Fingerprint some_fingerprint() {
  Fingerprint out{};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint8_t>(i * 3 + 1);
  return out;
}

PanelWrite write(
    const fs::path& target, const Contents& contents, const std::function<bool()>& stop = {},
    const std::function<bool()>& may_publish = [] { return true; }) {
  return write_panel_file(target, some_fingerprint(), contents.list, 0640, stop, may_publish);
}

std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::size_t files_in(const fs::path& directory) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

bool all_intact(const PanelFile& file) {
  for (std::int64_t piece = 0; piece < file.pieces(); ++piece)
    if (!file.piece_is_intact(piece)) return false;
  return true;
}

TEST(PanelFile, GivesBackEveryFormAsItWasWritten) {
  const TestDirectory dir;
  const Contents contents;
  ASSERT_EQ(write(dir / "m.panels", contents), PanelWrite::written);
  EXPECT_EQ(files_in(dir.path()), 1u);
  EXPECT_EQ(fs::file_size(dir / "m.panels"), panel_file_bytes(contents.list));
  const PanelFile file(dir / "m.panels");
  EXPECT_EQ(file.index().fingerprint, some_fingerprint());
  EXPECT_EQ(file.index().entries.size(), contents.list.size());
  EXPECT_GT(file.pieces(), 2);
  EXPECT_TRUE(all_intact(file));
  for (const PanelContent& content : contents.list) {
    const PanelEntry* entry = file.find(content.entry.name, content.entry.kind);
    ASSERT_NE(entry, nullptr) << content.entry.name;
    EXPECT_EQ(entry->offset % 4096, 0u);
    const PackedMatrix &got = entry->form, &given = content.entry.form;
    EXPECT_EQ(std::tie(got.kind, got.scale_type, got.bits, got.group, got.n, got.k),
              std::tie(given.kind, given.scale_type, given.bits, given.group, given.n, given.k));
    EXPECT_EQ(std::memcmp(file.data(*entry), content.data, entry->bytes()), 0) << content.entry.name;
  }
  EXPECT_EQ(file.find("v.norm", PanelEntryKind::matrix), nullptr);
  EXPECT_EQ(file.find("none", PanelEntryKind::vector), nullptr);
}

TEST(PanelFile, KeepsItsPagesWhereTheMappingIsHeld) {
  const TestDirectory dir;
  const Contents contents;
  ASSERT_EQ(write(dir / "m.panels", contents), PanelWrite::written);
  std::shared_ptr<const MappedFile> mapping;
  const std::byte* data = nullptr;
  {
    const PanelFile file(dir / "m.panels");
    mapping = file.mapping();
    data = file.data(*file.find("z.dense", PanelEntryKind::matrix));
  }
  fs::remove(dir / "m.panels");
  EXPECT_EQ(std::memcmp(data, contents.list.back().data, contents.list.back().entry.bytes()), 0);
}

// "Rss" or "Pss" of this process's mappings of a file, in kB. Pss divides every page by the processes that map it.
std::uint64_t mapped_kilobytes(const fs::path& file, const std::string& field) {
  std::ifstream in("/proc/self/smaps");
  std::uint64_t sum = 0;
  bool ours = false;
  for (std::string line; std::getline(in, line);) {
    if (line.find(" r--p ") != std::string::npos || line.find(" rw-p ") != std::string::npos ||
        line.find("-xp ") != std::string::npos || line.find("---p ") != std::string::npos)
      ours = line.ends_with(file.string());
    else if (ours && line.starts_with(field + ":"))
      sum += std::strtoull(line.c_str() + field.size() + 1, nullptr, 10);
  }
  return sum;
}

TEST(PanelFile, SharesItsPagesBetweenProcesses) {
  const TestDirectory dir;
  const fs::path path = dir / "m.panels";
  ASSERT_EQ(write(path, Contents()), PanelWrite::written);
  int ready[2], done[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(done), 0);
  const pid_t child = fork();
  if (child == 0) {
    const PanelFile file(path);
    char answer = all_intact(file) ? 'y' : 'n';
    if (::write(ready[1], &answer, 1) != 1) _exit(2);
    close(done[1]);
    _exit(::read(done[0], &answer, 1) == 0 ? 0 : 3);  // stays until the parent has looked
  }
  ASSERT_GT(child, 0);
  close(done[0]);
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  const PanelFile file(path);
  EXPECT_TRUE(all_intact(file));
  const std::uint64_t resident = mapped_kilobytes(path, "Rss"), share = mapped_kilobytes(path, "Pss");
  EXPECT_GE(resident, file.index().file_bytes / 1024 * 9 / 10);
  EXPECT_LE(share, resident * 6 / 10) << "of " << resident << " kB, two processes map them";
  EXPECT_EQ(mapped_kilobytes(path, "Private_Dirty"), 0u);
  close(done[1]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST(PanelFile, NoticesAFlippedBitAnywhereInItsData) {
  const TestDirectory dir;
  ASSERT_EQ(write(dir / "m.panels", Contents()), PanelWrite::written);
  const std::string good = read_all(dir / "m.panels");
  const std::uint64_t begin = PanelFile(dir / "m.panels").index().data_begin;
  const std::size_t step = (good.size() - begin) / 37;
  for (std::size_t at = begin; at < good.size(); at += step)
    for (const int bit : {0, 7}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1 << bit);
      dir.write("bad.panels", bad);
      EXPECT_FALSE(all_intact(PanelFile(dir / "bad.panels"))) << "byte " << at;
    }
  // A page that never reached the disk, and two lines that changed places.
  std::string lost = good;
  lost.replace(begin + 8192, 4096, 4096, '\0');
  dir.write("bad.panels", lost);
  EXPECT_FALSE(all_intact(PanelFile(dir / "bad.panels")));
  std::string swapped = good;
  std::swap_ranges(swapped.end() - 8192, swapped.end() - 8192 + 64, swapped.end() - 8192 + 64);
  dir.write("bad.panels", swapped);
  EXPECT_FALSE(all_intact(PanelFile(dir / "bad.panels")));
}

TEST(PanelFile, NoticesThatItWasCutWhileItWasOpen) {
  const TestDirectory dir;
  ASSERT_EQ(write(dir / "m.panels", Contents()), PanelWrite::written);
  const PanelFile file(dir / "m.panels");
  EXPECT_TRUE(all_intact(file));
  fs::resize_file(dir / "m.panels", file.index().data_begin + 4096);
  if (file.mapping()->populate(0, file.index().file_bytes)) GTEST_SKIP() << "this system cannot tell";
  EXPECT_FALSE(all_intact(file));
}

// The image of a file whose index has been edited and sealed again.
std::string edited(std::string image, const std::function<void(std::string&)>& edit) {
  edit(image);
  std::uint64_t table_bytes = 0;
  std::memcpy(&table_bytes, image.data() + 24, 8);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(image));
  if (table_bytes <= image.size() - kPanelHeaderBytes) {
    const Fingerprint seal = panel_seal(bytes, bytes.subspan(kPanelHeaderBytes, table_bytes));
    std::memcpy(image.data() + 80, seal.data(), seal.size());
  }
  return image;
}
template <class T>
std::function<void(std::string&)> put_at(std::size_t at, T value) {
  return [at, value](std::string& image) { std::memcpy(image.data() + at, &value, sizeof value); };
}

TEST(PanelFile, RefusesWhatIsNotWhole) {
  const TestDirectory dir;
  Contents contents;
  contents.list.resize(2);
  ASSERT_EQ(write(dir / "m.panels", contents), PanelWrite::written);
  const std::string good = read_all(dir / "m.panels");
  EXPECT_EQ(fact_of_refusal(good), "");
  EXPECT_EQ(fact_of_refusal(""), "F: 0 bytes, a panel file has at least 112");
  EXPECT_EQ(fact_of_refusal("x" + good.substr(1)), "F: does not begin with OUTRPANL");
  EXPECT_EQ(fact_of_refusal(edited(good, put_at(8, kPanelLayoutVersion + 1))),
            fmt::format("F: layout version {} (accepted: {})", kPanelLayoutVersion + 1, kPanelLayoutVersion));
  EXPECT_EQ(fact_of_refusal(edited(good, put_at(12, std::uint32_t{0x04030201}))), "F: byte order 04030201 is foreign");
  EXPECT_THAT(fact_of_refusal(good.substr(0, good.size() - 4096)), HasSubstr("its header says"));
  EXPECT_THAT(fact_of_refusal(good + std::string(4096, '\0')), HasSubstr("its header says"));
  EXPECT_THAT(fact_of_refusal(edited(good, put_at(24, std::uint64_t{1} << 60))), HasSubstr("a table of"));
  EXPECT_THAT(fact_of_refusal(edited(good, put_at(40, std::uint64_t{8192}))), HasSubstr("data begin at 8192"));
  EXPECT_THAT(fact_of_refusal(edited(good, put_at(32, std::uint64_t{1} << 40))), HasSubstr("the limit is 1000000"));
  EXPECT_THAT(fact_of_refusal(edited(good, put_at(32, std::uint64_t{1}))), HasSubstr("entries end at"));
  EXPECT_THAT(fact_of_refusal(edited(good, put_at(32, std::uint64_t{3}))), HasSubstr("F: "));
  for (std::size_t at = 48; at < 112 + 40; ++at) {  // fingerprint, seal and table without a new seal
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    EXPECT_EQ(fact_of_refusal(bad), "F: the index does not fit its SHA-256 (torn?)") << at;
  }
}

TEST(PanelFile, RefusesHostileEntries) {
  const TestDirectory dir;
  Contents contents;
  contents.list.resize(2);  // "a.affine2", "v.norm" by name
  ASSERT_EQ(write(dir / "m.panels", contents), PanelWrite::written);
  const std::string good = read_all(dir / "m.panels");
  constexpr std::size_t kFirst = kPanelHeaderBytes, kSecond = kFirst + kPanelEntryBytes + 9;
  const auto refusal = [&](std::size_t at, auto value) { return fact_of_refusal(edited(good, put_at(at, value))); };
  EXPECT_EQ(refusal(kFirst, std::uint16_t{0}), "F: a name of 0 bytes (limit 1..512)");
  EXPECT_EQ(refusal(kFirst, std::uint16_t{60000}), "F: a name of 60000 bytes (limit 1..512)");
  EXPECT_THAT(refusal(kFirst, std::uint16_t{500}), HasSubstr("inside a name"));
  EXPECT_THAT(refusal(kFirst + 2, std::uint8_t{2}), HasSubstr("kinds 2, 0, 2"));
  EXPECT_THAT(refusal(kFirst + 3, std::uint8_t{3}), HasSubstr("kinds 0, 3, 2"));
  EXPECT_THAT(refusal(kFirst + 4, std::uint8_t{200}), HasSubstr("kinds 0, 0, 200"));
  EXPECT_THAT(refusal(kFirst + 5, std::uint8_t{7}), HasSubstr("is no packed form"));
  EXPECT_THAT(refusal(kFirst + 6, std::uint16_t{0}), HasSubstr("is no packed form"));
  EXPECT_THAT(refusal(kFirst + 8, std::int64_t{-1}), HasSubstr("is [-1, 128]"));
  EXPECT_THAT(refusal(kFirst + 8, std::int64_t{1} << 62), HasSubstr("(accepted: 1..16777215)"));
  EXPECT_THAT(refusal(kFirst + 8, (std::int64_t{1} << 24) - 1), HasSubstr("needs"));
  EXPECT_THAT(refusal(kFirst + 16, std::int64_t{100}), HasSubstr("at width 100 is no packed form"));
  EXPECT_THAT(refusal(kFirst + 24, std::uint64_t{0}), HasSubstr("begins at 0, expected 4096"));
  EXPECT_THAT(refusal(kSecond + 24, std::uint64_t{4096}), HasSubstr("begins at 4096, expected"));
  EXPECT_THAT(refusal(kSecond + 16, std::int64_t{2}), HasSubstr("is no packed form"));
  EXPECT_THAT(refusal(kFirst + kPanelEntryBytes, '\x1b'), "");  // a name is text only where it is shown
}

TEST(PanelFile, AppearsWholeOrNotAtAll) {
  const TestDirectory dir;
  const Contents contents;
  int asked = 0;
  EXPECT_EQ(write(dir / "m.panels", contents, [&] { return ++asked == 3; }), PanelWrite::stopped);
  EXPECT_EQ(files_in(dir.path()), 0u);
  EXPECT_EQ(write(dir / "m.panels", contents, {}, [] { return false; }), PanelWrite::outdated);
  EXPECT_EQ(files_in(dir.path()), 0u);
  EXPECT_THROW(write(dir / "none/m.panels", contents), Error);
}

TEST(PanelFile, HasTheAccessThatIsAskedFor) {
  const TestDirectory dir;
  ASSERT_EQ(write(dir / "m.panels", Contents()), PanelWrite::written);
  EXPECT_EQ(fs::status(dir / "m.panels").permissions(), static_cast<fs::perms>(0640));
}

TEST(PanelFile, SaysWhatIsInTheWayOfItsTemporary) {
  const TestDirectory dir;
  ASSERT_EQ(mkfifo((dir / ".m.panels.tmp").c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { write(dir / "m.panels", Contents()); }), HasSubstr("cannot lock"));
  EXPECT_TRUE(fs::exists(dir / ".m.panels.tmp"));
}

TEST(PanelFile, LeavesNothingBehindOnAFullDisk) {
  const TestDirectory dir;
  // A limit of the process stands for the disk: the write that crosses it fails in the same way.
  struct rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = kPanelPieceBytes + 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = message_of([&] { write(dir / "m.panels", Contents()); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, HasSubstr("cannot write"));
  EXPECT_EQ(files_in(dir.path()), 0u);
}

TEST(PanelFile, TakesOverWhatAKilledProcessLeft) {
  const TestDirectory dir;
  dir.write(".m.panels.tmp", std::string(100000, 'x'));
  const Contents contents;
  EXPECT_EQ(write(dir / "m.panels", contents), PanelWrite::written);
  EXPECT_EQ(files_in(dir.path()), 1u);
  EXPECT_TRUE(all_intact(PanelFile(dir / "m.panels")));
}

TEST(PanelFile, IsLeftToTheProcessThatIsWritingIt) {
  const TestDirectory dir;
  dir.write(".m.panels.tmp", "half");
  const int other = open((dir / ".m.panels.tmp").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(other, LOCK_EX), 0);
  EXPECT_EQ(write(dir / "m.panels", Contents()), PanelWrite::busy);
  EXPECT_EQ(read_all(dir / ".m.panels.tmp"), "half");
  close(other);
}

TEST(PanelFile, IsReplacedWholeByRacingWriters) {
  const TestDirectory dir;
  const Contents contents;
  std::atomic<int> written{0}, busy{0}, seen{0};
  std::atomic<bool> ended{false};
  std::thread reader([&] {
    while (!ended)
      if (fs::exists(dir / "m.panels")) {
        EXPECT_TRUE(all_intact(PanelFile(dir / "m.panels")));
        ++seen;
      }
  });
  {
    std::vector<std::jthread> writers;
    for (int i = 0; i < 4; ++i)
      writers.emplace_back([&] {
        for (int round = 0; round < 3; ++round)
          ++(write(dir / "m.panels", contents) == PanelWrite::written ? written : busy);
      });
  }
  ended = true;
  reader.join();
  EXPECT_GT(written, 0);
  EXPECT_EQ(written + busy, 12);
  EXPECT_EQ(files_in(dir.path()), 1u);
  EXPECT_TRUE(all_intact(PanelFile(dir / "m.panels")));
}

// Packing that gives other bytes needs another kPanelLayoutVersion, or old files would be taken for current ones.
TEST(PanelFile, LayoutVersionBelongsToTheBytesOfPacking) {
  std::vector<std::byte> raw(16 * 64 + 4096);
  for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<std::byte>(i * 37 + i / 64);
  const auto checksum = [](const PackedWeight& packed) {
    return panel_checksum({packed.view.data, packed.view.bytes()});
  };
  const auto affine = [&](int bits, int group) {
    return checksum(
        pack_affine({bits, group, FloatType::f16, 16, 64, raw.data(), raw.data() + 2048, raw.data() + 3000}));
  };
  ASSERT_EQ(kPanelLayoutVersion, 1u) << "give the checksums of the new version below";
  EXPECT_EQ(affine(4, 64), 5196041955225166589u);
  EXPECT_EQ(affine(8, 32), 1975154879141437749u);
  EXPECT_EQ(affine(2, 64), 16874902781831417452u);
  EXPECT_EQ(affine(3, 64), 5104552236952779804u);
  EXPECT_EQ(affine(5, 32), 7489397664150214942u);
  EXPECT_EQ(affine(6, 32), 2107951361092224206u);
  EXPECT_EQ(checksum(pack_dense({FloatType::bf16, 16, 64, raw.data()})), 14565456638898475492u);
}

}  // namespace
}  // namespace outrider
