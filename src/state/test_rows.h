// For the tests of state/: rows whose every value follows from an id per position, so that a vector of ids is the model
// of a row.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "state/kv_row.h"

namespace outrider {

using RowModel = std::vector<std::uint32_t>;  // one id per position

// Two layers, two kv heads of width 3: small, and no two dimensions alike but for those.
inline KvLayout test_layout(FloatType type = FloatType::f16) { return {2, 2, 3, type}; }

enum class KvPlane : std::uint32_t { k, v };

inline std::uint32_t test_value(std::uint32_t id, std::int64_t layer, std::int64_t index, KvPlane plane) {
  std::uint32_t hash = id * 2654435761u + static_cast<std::uint32_t>(layer * 131 + index * 7 + 1) * 40503u +
                       static_cast<std::uint32_t>(plane) * 977u;
  hash ^= hash >> 15;
  return hash * 2246822519u;
}

// Token-major planes [layers][ids][K*D] of the positions with these ids.
struct TestPlanes {
  std::vector<std::byte> k;
  std::vector<std::byte> v;
};

inline TestPlanes test_planes(const KvLayout& layout, const RowModel& ids) {
  const std::int64_t line = layout.kv_heads * layout.head_width;
  const auto put = [&](std::vector<std::byte>& out, std::uint32_t value) {
    for (std::size_t i = 0; i < size_of(layout.type); ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
  };
  TestPlanes planes;
  for (std::int64_t layer = 0; layer < layout.layers; ++layer)
    for (const std::uint32_t id : ids)
      for (std::int64_t i = 0; i < line; ++i) {
        put(planes.k, test_value(id, layer, i, KvPlane::k));
        put(planes.v, test_value(id, layer, i, KvPlane::v));
      }
  return planes;
}

inline void append_ids(KvRow& row, const KvLayout& layout, const RowModel& ids) {
  const TestPlanes planes = test_planes(layout, ids);
  row.append(planes.k, planes.v, static_cast<std::int64_t>(ids.size()));
}

inline TestPlanes read_planes(const KvRow& row, const KvLayout& layout, std::int64_t begin, std::int64_t end) {
  const std::size_t bytes = static_cast<std::size_t>(end - begin) * layout.token_bytes() / 2;
  TestPlanes planes{std::vector<std::byte>(bytes), std::vector<std::byte>(bytes)};
  row.read(begin, end, planes.k, planes.v);
  return planes;
}

// Whether every byte of the row is the model's.
inline bool holds(const KvRow& row, const KvLayout& layout, const RowModel& ids) {
  if (row.length() != static_cast<std::int64_t>(ids.size())) return false;
  const TestPlanes want = test_planes(layout, ids);
  const TestPlanes got = read_planes(row, layout, 0, row.length());
  return got.k == want.k && got.v == want.v;
}

inline RowModel ids_from(std::uint32_t first, std::int64_t count) {
  RowModel ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(first + static_cast<std::uint32_t>(i));
  return ids;
}

inline RowModel joined(RowModel a, const RowModel& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline RowModel first_of(RowModel ids, std::int64_t n) {
  ids.resize(static_cast<std::size_t>(n));
  return ids;
}

}  // namespace outrider
