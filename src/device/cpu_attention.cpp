// Attention over row-private blocks. The unit of work is an item: a tile of one row's tokens with the query heads of
// one kv head, which share every key they read. Many items: one thread walks all chunks of an item. Few items
// (decoding, long contexts): an item's chunks go to different threads, and the thread that ends the last one merges
// them, ascending. Partials are merged in the output itself, so that scratch does not grow with the context.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "device/cpu_device.h"

namespace outrider {
namespace {

// Queries that share one pass over keys: the batch of a kernel (64 went as 48 + 16).
constexpr std::int64_t kTileQueries = 48;
// Partials held at a time, in queries per thread, when chunks are spread over threads.
constexpr std::int64_t kPartialQueries = 128;
constexpr std::int64_t kMaxSlotsPerThread = 32;
constexpr std::int64_t kItemsPerThread = 4;  // with so many items threads are kept busy without spreading chunks
constexpr std::int64_t kChunkBlocks = kChunkKeys / kBlockKeys;

std::int64_t heads_per_kv(const AttentionShape& shape) { return shape.heads / shape.kv_heads; }

// Tokens of a tile when rows have up to `longest` new tokens.
std::int64_t tile_tokens(const AttentionShape& shape, std::int64_t longest) {
  return std::min(longest, std::max<std::int64_t>(1, kTileQueries / heads_per_kv(shape)));
}

std::int64_t slots_per_thread(std::int64_t queries) {
  return std::clamp<std::int64_t>(kPartialQueries / queries, 2, kMaxSlotsPerThread);
}

// Tokens [begin, end) of one row of the batch.
struct Tile {
  std::int64_t row = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t position = 0;  // of `begin`
  std::int64_t chunks() const { return (position + end - begin - 1) / kChunkKeys + 1; }
};

// The piece of work no thread shares: one item's view of one chunk.
struct Unit {
  std::int64_t item = 0;
  std::int64_t chunk = 0;
};

constexpr Unit kNothing = {-1, 0};

// Partial results of one unit: m and l [queries], acc [queries][D].
struct Partial {
  float* m;
  float* l;
  float* acc;
};

constexpr std::size_t kTileBytes = sizeof(Tile);

std::size_t partial_bytes(std::int64_t queries, std::int64_t width) {
  return 2 * arena_bytes(static_cast<std::size_t>(queries) * sizeof(float)) +
         arena_bytes(static_cast<std::size_t>(queries * width) * sizeof(float));
}

std::size_t list_bytes(std::int64_t queries) {
  return arena_bytes(static_cast<std::size_t>(queries) * sizeof(const float*)) +
         arena_bytes(static_cast<std::size_t>(queries) * sizeof(std::int64_t));
}

}  // namespace

class CpuDevice::AttentionWork {
 public:
  AttentionWork(CpuDevice& device, const AttentionShape& shape, const RaggedBatch& batch, const KvLayout& layout,
                std::int64_t layer, Tensor q, Tensor out, Arena& arena)
      : device_(device), shape_(shape), batch_(batch), layout_(layout), layer_(layer), q_(q), out_(out), arena_(arena) {
    std::int64_t longest = 0;
    for (const BatchRow& row : batch.rows) longest = std::max(longest, row.end - row.begin);
    const std::int64_t step = tile_tokens(shape, longest);
    for (const BatchRow& row : batch.rows) tiles_ += ceil_div(row.end - row.begin, step);
    tile_ = reinterpret_cast<Tile*>(arena.take(static_cast<std::size_t>(tiles_) * kTileBytes));
    std::int64_t index = 0;
    for (std::size_t r = 0; r < batch.rows.size(); ++r) {
      const BatchRow& row = batch.rows[r];
      for (std::int64_t t = row.begin; t < row.end; t += step)
        tile_[index++] = {static_cast<std::int64_t>(r), t, std::min(row.end, t + step), row.position + t - row.begin};
    }
    queries_ = step * heads_per_kv(shape);
    running_m_ = arena.take_of<float>(batch.size() * shape.heads);
    running_l_ = arena.take_of<float>(batch.size() * shape.heads);
    lists_ = arena.take(static_cast<std::size_t>(device.threads()) * list_bytes(queries_));
  }

  void run() {
    std::int64_t chunks = 0;
    for (std::int64_t i = 0; i < tiles_; ++i) chunks += tile_[i].chunks() * shape_.kv_heads;
    const std::int64_t items = tiles_ * shape_.kv_heads;
    if (items < kItemsPerThread * device_.threads() && chunks > items && device_.threads() > 1)
      run_spread(chunks);
    else
      run_whole(items);
  }

 private:
  // An item: (tile, kv head), numbered tile-major.
  const Tile& tile_of(std::int64_t item) const { return tile_[item / shape_.kv_heads]; }
  std::int64_t kv_head_of(std::int64_t item) const { return item % shape_.kv_heads; }

  Partial take_partial() {
    return {arena_.take_of<float>(queries_), arena_.take_of<float>(queries_),
            arena_.take_of<float>(queries_ * shape_.head_width)};
  }

  void run_whole(std::int64_t items) {
    Partial* partials =
        reinterpret_cast<Partial*>(arena_.take(static_cast<std::size_t>(device_.threads()) * sizeof(Partial)));
    for (int t = 0; t < device_.threads(); ++t) partials[t] = take_partial();
    // The last tiles of a prompt see the most keys: they go first, so that threads end together.
    const std::int64_t threads = device_.threads();
    device_.parallel(items, [&](std::int64_t index, int thread) {
      const std::int64_t item = items - 1 - index, chunks = tile_of(item).chunks();
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        const Unit next = chunk + 1 < chunks ? Unit{item, chunk + 1} : Unit{item - threads, 0};
        attend({item, chunk}, next, partials[thread], thread);
        merge(item, chunk, partials[thread]);
      }
    });
  }

  void run_spread(std::int64_t units) {
    const std::int64_t slots = std::min(units, slots_per_thread(queries_) * device_.threads());
    Partial* partials = reinterpret_cast<Partial*>(arena_.take(static_cast<std::size_t>(slots) * sizeof(Partial)));
    for (std::int64_t s = 0; s < slots; ++s) partials[s] = take_partial();
    Unit* wave = reinterpret_cast<Unit*>(arena_.take(static_cast<std::size_t>(slots) * sizeof(Unit)));
    const std::int64_t items = tiles_ * shape_.kv_heads;
    // Units of the wave an item still waits for, and where they start in the wave.
    std::int64_t* waiting = arena_.take_of<std::int64_t>(items);
    std::int64_t* first = arena_.take_of<std::int64_t>(items);
    Unit next = {0, 0};
    for (std::int64_t done = 0; done < units;) {
      const std::int64_t count = std::min(slots, units - done);
      std::fill(waiting, waiting + items, 0);
      for (std::int64_t s = 0; s < count; ++s) {
        wave[s] = next;
        if (waiting[next.item]++ == 0) first[next.item] = s;
        if (++next.chunk == tile_of(next.item).chunks()) next = {next.item + 1, 0};
      }
      device_.parallel(count, [&](std::int64_t s, int thread) {
        const std::int64_t item = wave[s].item, ahead = s + device_.threads();
        attend(wave[s], ahead < count ? wave[ahead] : kNothing, partials[s], thread);
        if (std::atomic_ref(waiting[item]).fetch_sub(1, std::memory_order_acq_rel) != 1) return;
        for (std::int64_t i = first[item]; i < count && wave[i].item == item; ++i)
          merge(item, wave[i].chunk, partials[i]);
      });
      done += count;
    }
  }

  // Tokens of the tile that lie before the chunk see nothing of it.
  static std::int64_t first_token(const Tile& tile, std::int64_t chunk) {
    return tile.begin + std::max<std::int64_t>(0, chunk * kChunkKeys - tile.position);
  }

  // Where the planes of (layer, kv head) lie in block `block` of an item's row.
  const std::byte* plane_of(std::int64_t item, std::int64_t block) const {
    const std::span<std::byte* const> blocks = batch_.rows[static_cast<std::size_t>(tile_of(item).row)].blocks;
    return blocks[static_cast<std::size_t>(block)] + layout_.k_offset(layer_, kv_head_of(item));
  }

  // `next`: what this thread will likely attend to afterwards (claims go round); an item below 0 is none.
  void attend(Unit unit, Unit next, const Partial& partial, int thread) const {
    const auto [item, chunk] = unit;
    const Tile& tile = tile_of(item);
    const std::int64_t group = heads_per_kv(shape_), kv_head = kv_head_of(item), width = shape_.head_width;
    std::byte* lists = lists_ + static_cast<std::size_t>(thread) * list_bytes(queries_);
    auto* const q = reinterpret_cast<const float**>(lists);
    auto* const last_key =
        reinterpret_cast<std::int64_t*>(lists + arena_bytes(static_cast<std::size_t>(queries_) * sizeof(const float*)));
    std::int64_t queries = 0;
    for (std::int64_t t = first_token(tile, chunk); t < tile.end; ++t)
      for (std::int64_t h = 0; h < group; ++h, ++queries) {
        q[queries] = q_.row(t) + (kv_head * group + h) * shape_.q_stride();
        last_key[queries] = tile.position + t - tile.begin;
      }
    std::array<const std::byte*, kChunkBlocks> k_blocks{}, v_blocks{};
    const std::int64_t last_block = (tile.position + tile.end - tile.begin - 1) / kBlockKeys;
    for (std::int64_t b = 0; b < kChunkBlocks && chunk * kChunkBlocks + b <= last_block; ++b) {
      k_blocks[static_cast<std::size_t>(b)] = plane_of(item, chunk * kChunkBlocks + b);
      v_blocks[static_cast<std::size_t>(b)] = k_blocks[static_cast<std::size_t>(b)] + layout_.plane_bytes();
    }
    const std::byte* ahead = next.item < 0 ? nullptr : plane_of(next.item, next.chunk * kChunkBlocks);
    device_.kernels_.attend_chunk({.q = q,
                                   .last_key = last_key,
                                   .queries = queries,
                                   .chunk_begin = chunk * kChunkKeys,
                                   .first_key = batch_.rows[static_cast<std::size_t>(tile.row)].first_key,
                                   .k_blocks = k_blocks.data(),
                                   .v_blocks = v_blocks.data(),
                                   .next_k = ahead,
                                   .next_v = ahead == nullptr ? nullptr : ahead + layout_.plane_bytes(),
                                   .kv_type = layout_.type,
                                   .head_width = width,
                                   .m = partial.m,
                                   .l = partial.l,
                                   .acc = partial.acc});
  }

  // Folds a chunk's partials into the output, which holds acc until the item's last chunk turns it into o.
  void merge(std::int64_t item, std::int64_t chunk, const Partial& partial) const {
    const Tile& tile = tile_of(item);
    const std::int64_t group = heads_per_kv(shape_), width = shape_.head_width;
    std::int64_t i = 0;
    for (std::int64_t t = first_token(tile, chunk); t < tile.end; ++t)
      for (std::int64_t h = kv_head_of(item) * group; h < (kv_head_of(item) + 1) * group; ++h, ++i) {
        float* acc = out_.row(t) + h * width;
        float& m = running_m_[t * shape_.heads + h];
        float& l = running_l_[t * shape_.heads + h];
        const float* chunk_acc = partial.acc + i * width;
        if (chunk == 0) {
          m = partial.m[i];
          l = partial.l[i];
          std::memcpy(acc, chunk_acc, static_cast<std::size_t>(width) * sizeof(float));
        } else {
          device_.kernels_.attend_merge(&m, &l, acc, partial.m[i], partial.l[i], chunk_acc, width);
        }
        const std::int64_t last_chunk = (tile.position + t - tile.begin) / kChunkKeys;
        if (chunk == last_chunk) device_.kernels_.attend_finish(acc, l, width, acc);
      }
  }

  CpuDevice& device_;
  const AttentionShape& shape_;
  const RaggedBatch& batch_;
  const KvLayout& layout_;
  std::int64_t layer_;
  Tensor q_, out_;
  Arena& arena_;
  std::int64_t tiles_ = 0, queries_ = 0;
  Tile* tile_ = nullptr;
  float* running_m_ = nullptr;
  float* running_l_ = nullptr;
  std::byte* lists_ = nullptr;
};

void CpuDevice::attention(const AttentionShape& shape, const RaggedBatch& batch, const KvLayout& layout,
                          std::int64_t layer, Tensor q, Tensor out, Arena& arena) {
  check_float_environment();
  check_batch(batch);
  OUTRIDER_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, "{} heads over {} kv heads", shape.heads,
                 shape.kv_heads);
  OUTRIDER_CHECK(q.rows == batch.size() && q.width == shape.heads * shape.q_stride() && out.rows == q.rows &&
                     out.width == shape.heads * shape.head_width && out.data != q.data,
                 "q [{}, {}], out [{}, {}] for {} tokens", q.rows, q.width, out.rows, out.width, batch.size());
  OUTRIDER_CHECK(
      layout.kv_heads == shape.kv_heads && layout.head_width == shape.head_width && layer >= 0 && layer < layout.layers,
      "layer {} of a cache of {} layers", layer, layout.layers);
  if (batch.size() == 0) return;
  Arena::Scope scope(arena);
  AttentionWork(*this, shape, batch, layout, layer, q, out, arena).run();
}

std::size_t CpuDevice::attention_scratch_bytes(std::int64_t tokens, std::int64_t rows, const AttentionShape& shape,
                                               std::int64_t context_tokens) const {
  const std::int64_t step = tile_tokens(shape, tokens), queries = step * heads_per_kv(shape);
  // Rows of one token make the most tiles; a tile list never has more entries than tokens.
  const std::int64_t tiles = std::min(tokens, tokens / step + rows);
  const auto bytes_of = [](std::int64_t count, std::size_t size) {
    return arena_bytes(static_cast<std::size_t>(count) * size);
  };
  const std::size_t shared = bytes_of(tiles, kTileBytes) + 2 * bytes_of(tokens * shape.heads, sizeof(float)) +
                             static_cast<std::size_t>(threads()) * list_bytes(queries);
  const std::size_t whole = bytes_of(threads(), sizeof(Partial)) +
                            static_cast<std::size_t>(threads()) * partial_bytes(queries, shape.head_width);
  // Spread work: shorter tiles get more slots, at most kPartialQueries (or two tiles) per thread in all.
  std::size_t spread = 0;
  const std::int64_t items = std::min(tiles * shape.kv_heads, kItemsPerThread * threads());
  if (context_tokens > kChunkKeys && threads() > 1)
    for (std::int64_t t = 1; t <= step; ++t) {
      const std::int64_t q = t * heads_per_kv(shape);
      const std::int64_t units = items * ceil_div(context_tokens, kChunkKeys);
      const std::int64_t slots = std::min(units, slots_per_thread(q) * threads());
      spread = std::max(spread, bytes_of(slots, sizeof(Partial)) + bytes_of(slots, sizeof(Unit)) +
                                    2 * bytes_of(items, sizeof(std::int64_t)) +
                                    static_cast<std::size_t>(slots) * partial_bytes(q, shape.head_width));
    }
  return shared + std::max(whole, spread);
}

}  // namespace outrider
