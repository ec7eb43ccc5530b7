// The rows of a draft group as such: joining, leaving, copies, checkpoints. The rounds are in mtp_rounds.cpp.
#include "speculate/mtp_rows.h"

#include <utility>

#include "base/failure_injection.h"
#include "speculate/mtp_row.h"

namespace outrider {
namespace {

std::size_t float_bytes(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float); }

Error misaligned(const std::string& fact) {
  return Error(ErrorKind::data, "invalid paired MTP checkpoint alignment: " + fact,
               "the stored row belongs to another model, head or prefix; it is computed again without it");
}

}  // namespace

MtpRows::MtpRows(DraftModule& module, KvPool& pool, const DraftLimits& limits, Refresh refresh)
    : module_(module), pool_(pool), limits_(limits), refresh_(refresh), work_(std::make_unique<Work>(limits)) {
  const KvLayout layout = module.kv_layout();
  OUTRIDER_CHECK(
      layout.layers == 1 && pool.layout().block_bytes() == layout.block_bytes() && pool.layout().type == layout.type,
      "a draft head keeps one layer of {} bytes a block, the pool has blocks of {}", layout.block_bytes(),
      pool.layout().block_bytes());
  OUTRIDER_CHECK(limits.rows > 0 && limits.depth > 0 && limits.chunk_tokens > limits.depth,
                 "{} rows, depth {}, passes of {} tokens", limits.rows, limits.depth, limits.chunk_tokens);
}

MtpRows::~MtpRows() = default;

MtpRows::Row& MtpRows::at(std::int64_t r) {
  OUTRIDER_CHECK(r >= 0 && r < row_count(), "draft row {} of {}", r, row_count());
  return rows_[static_cast<std::size_t>(r)];
}

const MtpRows::Row& MtpRows::at(std::int64_t r) const { return const_cast<MtpRows*>(this)->at(r); }

std::int64_t MtpRows::row_count() const { return static_cast<std::int64_t>(rows_.size()); }
std::int64_t MtpRows::draft_length(std::int64_t r) const { return at(r).draft_length(); }
std::int64_t MtpRows::carried(std::int64_t r) const { return static_cast<std::int64_t>(at(r).carried.size()); }
std::int64_t MtpRows::processed(std::int64_t r) const { return at(r).committed ? draft_length(r) + carried(r) + 1 : 0; }
std::span<const float> MtpRows::hidden(std::int64_t r) const {
  return at(r).now.as<float>().first(static_cast<std::size_t>(module_.width()));
}
const KvRow& MtpRows::kv(std::int64_t r) const { return at(r).kv; }
std::int64_t MtpRows::exact_length(std::int64_t r) const { return at(r).exact; }
bool MtpRows::without_head(std::int64_t r) const { return at(r).headless; }
std::int64_t MtpRows::rows_without_head() const { return rows_without_head_; }
bool MtpRows::in_round(std::int64_t r) const { return at(r).stage == Row::Stage::drafted; }
std::span<const std::int32_t> MtpRows::proposals(std::int64_t r) const { return at(r).proposals; }

std::size_t MtpRows::row_bytes(std::int64_t width, const DraftLimits& limits) {
  return 2 * float_bytes((1 + limits.depth) * width);
}

std::size_t MtpRows::scratch_bytes(const DraftModule& module, const Device& device, const DraftLimits& limits) {
  return tensor_bytes(limits.rows, module.width()) + tensor_bytes(limits.chunk_tokens, module.width()) +
         module.scratch_bytes(device, limits);
}

// New rows, and room for the group with them.
class MtpRows::AppendChange : public StateChange {
 public:
  AppendChange(MtpRows& group, std::vector<Row> added) : group_(group), order_(group.order_), added_(std::move(added)) {
    rows_.reserve(group.rows_.size() + added_.size());
  }
  void commit() noexcept override {
    OUTRIDER_CHECK(group_.order_ == order_, "the draft group changed after prepare_append");
    for (Row& row : group_.rows_) rows_.push_back(std::move(row));
    for (Row& row : added_) rows_.push_back(std::move(row));
    added_.clear();
    group_.rows_.swap(rows_);
    ++group_.order_;
  }
  void dispose() noexcept override {
    rows_.clear();
    added_.clear();
  }

 private:
  MtpRows& group_;
  std::uint64_t order_;
  std::vector<Row> added_;
  std::vector<Row> rows_;
};

PreparedStateChange MtpRows::prepare_append(std::span<const MtpJoin> joins) {
  fallible_point("MtpRows::prepare_append");
  const std::int64_t width = module_.width();
  const auto depth = static_cast<std::size_t>(limits_.depth);
  std::vector<Row> added;
  added.reserve(joins.size());
  for (const MtpJoin& join : joins) {
    Row& row = added.emplace_back(pool_);
    row.now = AlignedBuffer(row_bytes(width, limits_) / 2, MemoryPart::kv);
    row.next = AlignedBuffer(row_bytes(width, limits_) / 2, MemoryPart::kv);
    row.carried.reserve(depth);
    row.next_carried.reserve(depth);
    row.proposals.reserve(depth);
    row.planned_tokens = join.planned_tokens;
    row.headless = join.head == MtpJoin::Head::without;
    if (join.state == nullptr) continue;
    OUTRIDER_CHECK(join.state->kv.joins(row.kv) && join.state->hidden.size() == float_bytes(width),
                   "a draft row of another pool or width joins");
    row.kv = join.state->kv.clone();
    std::memcpy(row.now.data(), join.state->hidden.data(), float_bytes(width));
    row.committed = true;
    row.exact = join.state->exact;
  }
  return PreparedStateChange(std::make_unique<AppendChange>(*this, std::move(added)));
}

class MtpRows::FilterChange : public StateChange {
 public:
  FilterChange(MtpRows& group, std::span<const std::int64_t> keep)
      : group_(group), order_(group.order_), keep_(keep.begin(), keep.end()) {
    rows_.reserve(keep.size());
  }
  void commit() noexcept override {
    OUTRIDER_CHECK(group_.order_ == order_, "the draft group changed after prepare_filter");
    for (const std::int64_t r : keep_) rows_.push_back(std::move(group_.at(r)));
    group_.rows_.swap(rows_);
    ++group_.order_;
  }
  void dispose() noexcept override { rows_.clear(); }

 private:
  MtpRows& group_;
  std::uint64_t order_;
  std::vector<std::int64_t> keep_;
  std::vector<Row> rows_;
};

PreparedStateChange MtpRows::prepare_filter(std::span<const std::int64_t> keep) {
  fallible_point("MtpRows::prepare_filter");
  std::vector<bool> named(rows_.size());
  for (const std::int64_t r : keep) {
    OUTRIDER_CHECK(at(r).stage != Row::Stage::prepared, "filter of draft row {} while a change of it is prepared", r);
    OUTRIDER_CHECK(!named[static_cast<std::size_t>(r)], "filter names draft row {} twice", r);
    named[static_cast<std::size_t>(r)] = true;
  }
  for (std::size_t r = 0; r < rows_.size(); ++r)
    OUTRIDER_CHECK(named[r] || rows_[r].stage == Row::Stage::idle, "draft row {} retires inside a round", r);
  return PreparedStateChange(std::make_unique<FilterChange>(*this, keep));
}

std::optional<MtpState> MtpRows::extract_row(const Step& step, std::int64_t r) {
  flush(step, r);
  Row& row = at(r);
  if (!row.committed) return std::nullopt;
  MtpState state{row.kv.extract(), AlignedBuffer(float_bytes(module_.width()), MemoryPart::kv), row.exact};
  std::memcpy(state.hidden.data(), row.now.data(), state.hidden.size());
  return state;
}

KvRow MtpRows::share_prefix(const Step& step, std::int64_t r, std::int64_t n) {
  flush(step, r);
  const Row& row = at(r);
  OUTRIDER_CHECK(row.committed && n >= 1 && n - 1 <= row.exact, "prefix of {} tokens of a draft row with {} exact rows",
                 n, row.exact);
  return row.kv.prefix(n == 1 ? 0 : n);
}

MtpCheckpoint MtpRows::checkpoint(const Step& step, std::int64_t r) {
  flush(step, r);
  const Row& row = at(r);
  OUTRIDER_CHECK(row.committed, "checkpoint of cold draft row {}", r);
  MtpCheckpoint out;
  out.draft_offset = row.draft_length();
  out.exact = row.exact;
  out.identity = module_.identity();
  const std::span<const float> tap = hidden(r);
  out.hidden.assign(tap.begin(), tap.end());
  if (out.draft_offset == 0) return out;
  const std::size_t plane = static_cast<std::size_t>(out.draft_offset) * pool_.layout().token_bytes() / 2;
  out.k.resize(plane);
  out.v.resize(plane);
  row.kv.read(1, row.kv.length(), out.k, out.v);
  return out;
}

MtpState MtpRows::restore(const MtpCheckpoint& c, std::int64_t tokens) const {
  const std::size_t line = pool_.layout().token_bytes() / 2;
  if (c.identity != module_.identity())
    throw misaligned(fmt::format("head {}, this one is {}", c.identity, module_.identity()));
  if (tokens < 1 || c.draft_offset != tokens - 1)
    throw misaligned(fmt::format("{} draft rows beside {} target tokens", c.draft_offset, tokens));
  // Divided, not multiplied: the offset comes from a file.
  if (c.k.size() % line != 0 || c.k.size() / line != static_cast<std::size_t>(c.draft_offset) ||
      c.v.size() != c.k.size())
    throw misaligned(
        fmt::format("planes of {} and {} bytes for {} draft rows of {}", c.k.size(), c.v.size(), c.draft_offset, line));
  if (c.exact < 0 || c.exact > c.draft_offset)
    throw misaligned(fmt::format("{} exact rows of {}", c.exact, c.draft_offset));
  if (c.hidden.size() != static_cast<std::size_t>(module_.width()))
    throw misaligned(fmt::format("a hidden of {} values, the model's width is {}", c.hidden.size(), module_.width()));
  MtpState state{KvRow(pool_), AlignedBuffer(float_bytes(module_.width()), MemoryPart::kv), c.exact};
  std::memcpy(state.hidden.data(), c.hidden.data(), state.hidden.size());
  if (c.draft_offset == 0) return state;
  const std::vector<std::byte> empty(line);
  state.kv.append(empty, empty, 1);
  state.kv.append(c.k, c.v, c.draft_offset);
  return state;
}

}  // namespace outrider
