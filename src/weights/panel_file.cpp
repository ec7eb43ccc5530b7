#include "weights/panel_file.h"

#include <algorithm>

#include "weights/file_error.h"
#include "weights/panel_index.h"

namespace outrider {
namespace {

constexpr std::int64_t kMostRows = (std::int64_t{1} << 24) - 1;  // the largest dimension a config may name
constexpr std::uint64_t kMostEntries = 1'000'000;
constexpr std::size_t kMostNameBytes = 512;

// Reads the index in order; every read is checked against what is left.
class IndexReader {
 public:
  IndexReader(std::span<const std::byte> bytes, std::string_view origin) : bytes_(bytes), origin_(origin) {}

  template <class T>
  T take(std::string_view what) {
    T value;
    std::memcpy(&value, bytes(sizeof value, what).data(), sizeof value);
    return value;
  }
  std::span<const std::byte> bytes(std::size_t count, std::string_view what) {
    if (count > bytes_.size() - at_)
      throw file_error(origin_, fmt::format("the table ends at byte {} inside {}", bytes_.size(), what));
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  std::string_view origin_;
  std::size_t at_ = 0;
};

// The form of an entry as the layout allows it; empty: it is sound.
std::string fault_of(const PanelEntry& entry) {
  const PackedMatrix& f = entry.form;
  if (f.n < 1 || f.n > kMostRows || f.k < 1 || f.k > kMostRows)
    return fmt::format("is [{}, {}] (accepted: 1..{})", f.n, f.k, kMostRows);
  const auto among = [](int value, std::initializer_list<int> accepted) {
    return std::find(accepted.begin(), accepted.end(), value) != accepted.end();
  };
  bool sound = false;
  switch (f.kind) {
    case PackedKind::affine:
      sound = among(f.bits, {2, 3, 4, 5, 6, 8}) && among(f.group, {32, 64, 128});
      break;
    case PackedKind::e2m1:
      sound = f.bits == 4 && among(f.group, {16, 32}) && f.scale_type == FloatType::f32;
      break;
    case PackedKind::dense:
      sound = f.bits == 0 && f.group == 0;
      break;
  }
  if (entry.kind == PanelEntryKind::vector)
    sound = sound && f.kind == PackedKind::dense && f.scale_type == FloatType::f32 && f.k == 1;
  if (!sound || (f.coded() && f.k % f.group != 0))
    return fmt::format("kind {}, type {}, {} bits, group {} at width {} is no packed form", static_cast<int>(f.kind),
                       static_cast<int>(f.scale_type), f.bits, f.group, f.k);
  return "";
}

PanelEntry read_entry(IndexReader& table, std::string_view origin) {
  PanelEntry entry;
  const auto name_bytes = table.take<std::uint16_t>("a name's length");
  const auto kind = table.take<std::uint8_t>("an entry"), packed = table.take<std::uint8_t>("an entry"),
             type = table.take<std::uint8_t>("an entry");
  entry.form.bits = table.take<std::uint8_t>("an entry");
  entry.form.group = table.take<std::uint16_t>("an entry");
  entry.form.n = table.take<std::int64_t>("an entry");
  entry.form.k = table.take<std::int64_t>("an entry");
  entry.offset = table.take<std::uint64_t>("an entry");
  if (name_bytes == 0 || name_bytes > kMostNameBytes)
    throw file_error(origin, fmt::format("a name of {} bytes (limit 1..{})", name_bytes, kMostNameBytes));
  const auto name = table.bytes(name_bytes, "a name");
  entry.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  if (kind > 1 || packed > 2 || type > 2)
    throw tensor_error(origin, entry.name,
                       fmt::format("kinds {}, {}, {} (accepted: 0..1, 0..2, 0..2)", kind, packed, type));
  entry.kind = static_cast<PanelEntryKind>(kind);
  entry.form.kind = static_cast<PackedKind>(packed);
  entry.form.scale_type = static_cast<FloatType>(type);
  if (const std::string fault = fault_of(entry); !fault.empty()) throw tensor_error(origin, entry.name, fault);
  return entry;
}

// The numbers of the header that the rest is read by.
struct Header {
  std::uint64_t table_bytes = 0, entries = 0;
};

Header read_header(std::span<const std::byte> file, std::string_view origin, PanelIndex& index) {
  if (file.size() < kPanelHeaderBytes)
    throw file_error(origin, fmt::format("{} bytes, a panel file has at least {}", file.size(), kPanelHeaderBytes));
  IndexReader in(file.first(kPanelHeaderBytes), origin);
  if (std::memcmp(in.bytes(sizeof kPanelMagic, "the magic").data(), kPanelMagic, sizeof kPanelMagic) != 0)
    throw file_error(origin, "does not begin with OUTRPANL");
  const auto version = in.take<std::uint32_t>("the version"), order = in.take<std::uint32_t>("the byte order");
  if (order != kPanelByteOrder) throw file_error(origin, fmt::format("byte order {:08x} is foreign", order));
  if (version != kPanelLayoutVersion)
    throw file_error(origin, fmt::format("layout version {} (accepted: {})", version, kPanelLayoutVersion));
  index.file_bytes = in.take<std::uint64_t>("the size");
  Header header;
  header.table_bytes = in.take<std::uint64_t>("the table's size");
  header.entries = in.take<std::uint64_t>("the number of entries");
  index.data_begin = in.take<std::uint64_t>("the data's begin");
  std::memcpy(index.fingerprint.data(), in.bytes(index.fingerprint.size(), "the fingerprint").data(),
              index.fingerprint.size());
  Fingerprint seal;
  std::memcpy(seal.data(), in.bytes(seal.size(), "the seal").data(), seal.size());
  if (index.file_bytes != file.size())
    throw file_error(origin, fmt::format("has {} bytes, its header says {} (torn?)", file.size(), index.file_bytes));
  if (header.table_bytes > file.size() - kPanelHeaderBytes)
    throw file_error(origin, fmt::format("a table of {} bytes in a file of {}", header.table_bytes, file.size()));
  if (index.data_begin != panel_aligned(kPanelHeaderBytes + header.table_bytes) || index.data_begin > file.size())
    throw file_error(origin, fmt::format("data begin at {}, the table ends at {}", index.data_begin,
                                         kPanelHeaderBytes + header.table_bytes));
  if (panel_seal(file.first(kPanelHeaderBytes), file.subspan(kPanelHeaderBytes, header.table_bytes)) != seal)
    throw file_error(origin, "the index does not fit its SHA-256 (torn?)");
  if (header.entries > kMostEntries)
    throw file_error(origin, fmt::format("{} entries, the limit is {}", header.entries, kMostEntries));
  return header;
}

}  // namespace

std::uint64_t PanelEntry::bytes() const {
  return kind == PanelEntryKind::vector ? static_cast<std::uint64_t>(form.n) * sizeof(float) : form.bytes();
}

Fingerprint panel_seal(std::span<const std::byte> header, std::span<const std::byte> table) {
  Sha256 hash;
  hash.add(header.first(kPanelSealedBytes));
  hash.add(table);
  return hash.finish();
}

PanelIndex parse_panels(std::span<const std::byte> file, std::string_view origin) {
  PanelIndex index;
  const Header header = read_header(file, origin, index);
  IndexReader table(file.subspan(kPanelHeaderBytes, header.table_bytes), origin);
  std::uint64_t end = index.data_begin;
  for (std::uint64_t i = 0; i < header.entries; ++i) {
    PanelEntry entry = read_entry(table, origin);
    if (entry.offset != end)
      throw tensor_error(origin, entry.name, fmt::format("begins at {}, expected {}", entry.offset, end));
    // No overflow: sides below 2^24 and blocks of at most 8 KiB stay below 2^62.
    if (entry.bytes() > file.size() - end)
      throw tensor_error(origin, entry.name,
                         fmt::format("needs {} bytes at {}, the file has {}", entry.bytes(), end, file.size()));
    end = panel_aligned(end + entry.bytes());
    const std::string name = entry.name;
    if (!index.entries.emplace(name, std::move(entry)).second) throw tensor_error(origin, name, "is there twice");
  }
  if (end != file.size())
    throw file_error(origin, fmt::format("entries end at {}, the file has {} bytes", end, file.size()));
  index.checksums.resize(piece_slots(index.file_bytes - index.data_begin));
  for (std::uint64_t& checksum : index.checksums) checksum = table.take<std::uint64_t>("a checksum");
  if (!table.at_end()) throw file_error(origin, "bytes follow the checksums of the table");
  index.checksums.resize(piece_count(index.data_begin, index.file_bytes));
  return index;
}

std::uint64_t panel_checksum(std::span<const std::byte> bytes) {
  // Sixteen lanes of words and sums of sums: plain vector adds that memory outpaces. A flipped bit changes the sum of
  // its lane; lines that changed places change the sum of sums.
  constexpr std::size_t kLanes = 16;
  OUTRIDER_CHECK(bytes.size() % (kLanes * 4) == 0, "{} bytes", bytes.size());
  std::uint32_t sums[kLanes] = {}, sums_of_sums[kLanes] = {};
  for (std::size_t at = 0; at < bytes.size(); at += kLanes * 4) {
    std::uint32_t words[kLanes];
    std::memcpy(words, bytes.data() + at, sizeof words);
    for (std::size_t l = 0; l < kLanes; ++l) {
      sums[l] += words[l];
      sums_of_sums[l] += sums[l];
    }
  }
  std::uint64_t out = bytes.size();
  for (std::size_t l = 0; l < kLanes; ++l) {
    out = (out ^ (static_cast<std::uint64_t>(sums_of_sums[l]) << 32 | sums[l])) * 0x9E3779B97F4A7C15ull;
    out ^= out >> 29;
  }
  return out;
}

PanelFile::PanelFile(const std::filesystem::path& path) {
  MappedFile file(path);
  index_ = parse_panels(file.bytes(), path.string());
  file.prefer_large_pages();
  mapping_ = std::make_shared<const MappedFile>(std::move(file));
}

const PanelEntry* PanelFile::find(std::string_view name, PanelEntryKind kind) const {
  const auto found = index_.entries.find(name);
  return found == index_.entries.end() || found->second.kind != kind ? nullptr : &found->second;
}

bool PanelFile::piece_is_intact(std::int64_t piece) const {
  const std::uint64_t number = first_piece(index_.data_begin) + static_cast<std::uint64_t>(piece);
  const std::uint64_t begin = std::max<std::uint64_t>(number * kPanelPieceBytes, index_.data_begin);
  const std::uint64_t end = std::min<std::uint64_t>((number + 1) * kPanelPieceBytes, index_.file_bytes);
  return mapping_->populate(begin, end - begin) && panel_checksum(mapping_->bytes().subspan(begin, end - begin)) ==
                                                       index_.checksums[static_cast<std::size_t>(piece)];
}

}  // namespace outrider
