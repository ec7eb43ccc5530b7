// What requests leave behind for others that begin with the same tokens (serving.md section 6), in memory.
//
// A tree with one node per block of 64 tokens, found by a chain of hashes over all tokens before its end; ids are
// compared after a hash match. A node shares the KV blocks of the rows it came from and of those restored from it. In a
// model whose state is more than KV blocks (recurrent layers, a draft head that needs the last hidden) only the nodes
// that carry a checkpoint are boundaries a row can be restored at; elsewhere all are. Either all parts of a boundary
// are there or it is none.
//
// Beyond its capacity the store evicts, least recently used first, what no row holds: checkpoints before the blocks
// they need, leaves before their parents, of one path what is farther from its end first.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "base/state_change.h"
#include "state/state_row.h"
#include "weights/sha256.h"

namespace outrider {

// Whose entries a request may see.
struct PrefixScope {
  std::string adapter = "base", tenant, salt;
};

// The key of the empty prefix. model_key: of the model's files, numerics and KV configuration.
Sha256Digest prefix_root(std::string_view model_key, const PrefixScope& scope);

// The keys of one request's blocks.
class PrefixChain {
 public:
  explicit PrefixChain(const Sha256Digest& root = {}) : root_(root) {}
  // Of the first `blocks` blocks of `tokens`, which may only have grown since the last call.
  std::span<const Sha256Digest> keys(std::span<const std::int32_t> tokens, std::int64_t blocks);

 private:
  Sha256Digest root_;
  std::vector<Sha256Digest> keys_;
};

// The parts of an entry beside its KV blocks, and what they take.
struct PrefixParts {
  std::size_t block_bytes = 0;        // of KV, all layers
  std::size_t draft_block_bytes = 0;  // 0: no draft head that is used
  std::int64_t hidden_width = 0;      // E of the target's last hidden, with a draft head
  std::size_t slot_bytes = 0;         // 0: no recurrent layers

  bool any_block() const { return draft_block_bytes == 0 && slot_bytes == 0; }
  std::size_t node_bytes() const;
  std::size_t checkpoint_bytes() const;
};

// How many entries there may be: blocks, and checkpoints where they are needed. Counted apart, so that neither pool of
// state ever holds more than was planned for it.
struct PrefixCapacity {
  std::int64_t blocks = 0, checkpoints = 0;
};
// What `bytes` bytes are used for; none where they hold no whole entry.
PrefixCapacity prefix_capacity(const PrefixParts& parts, std::uint64_t bytes);

// A position of a row that others may be restored at, on the 64-grid. hidden: [E], with a draft head.
struct PrefixCheckpoint {
  std::int64_t position = 0;
  std::span<const float> hidden;
};

// The beginning of a committed row, offered up to the last of its keys. All borrowed.
struct PrefixOffer {
  std::span<const Sha256Digest> keys;    // at least one
  std::span<const std::int32_t> tokens;  // [64 keys]
  const StateRow* row = nullptr;         // with a stored state at every checkpoint
  const KvRow* draft = nullptr;          // with a draft head
  // Ascending, the last one at the end of the offer; none where any block is a boundary.
  std::span<const PrefixCheckpoint> checkpoints;
  std::int64_t superseded = 0;  // this earlier checkpoint goes, unless somebody was restored at it; 0: none
  bool* left_end = nullptr;     // set by the commit: whether the checkpoint at the end is new
};

class PrefixStore {
 public:
  // Pools outlive the store. draft_pool: null without a draft head.
  PrefixStore(StatePool& pool, KvPool* draft_pool, const PrefixParts& parts, const PrefixCapacity& capacity);
  ~PrefixStore();
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;

  // All that can fail happens here; nothing of the store or the row changes before the commit. The commit evicts as
  // needed and stores what is new of the offer, or refuses it whole (counted) when it does not fit beside what is held.
  PreparedStateChange prepare_publish(const PrefixOffer& offer);

  struct Hit {
    std::int64_t tokens = 0;
    StateRow row;
    std::optional<KvRow> draft;
    std::span<const float> hidden;  // borrowed until the store changes
  };
  // The longest boundary of a request with these keys and tokens [64 keys].
  std::optional<Hit> restore(std::span<const Sha256Digest> keys, std::span<const std::int32_t> tokens);

  // Evicts until `wanted` more checkpoints have room, or as many as can; returns how many have.
  std::int64_t make_room_for_checkpoints(std::int64_t wanted) noexcept;

  std::int64_t blocks() const { return static_cast<std::int64_t>(order_.size()); }
  std::int64_t checkpoints() const { return checkpoints_; }
  const PrefixParts& parts() const { return parts_; }
  const PrefixCapacity& capacity() const { return capacity_; }
  struct Counters {
    std::int64_t lookups = 0, hits = 0, hit_tokens = 0, published = 0, refused = 0, evicted = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Checkpoint {
    std::optional<RecurrentRow> state;
    AlignedBuffer hidden;
    bool restored = false;
  };
  struct Node {
    Sha256Digest key{};
    std::array<std::int32_t, kBlockKeys> tokens{};
    Node* parent = nullptr;
    std::int64_t blocks = 0;  // up to its end
    std::int64_t children = 0;
    KvBlock kv;
    std::optional<KvBlock> draft;
    std::optional<Checkpoint> checkpoint;
    bool kept = false;  // while a commit makes room around it
  };
  using Nodes = std::list<Node>;
  using Index = std::map<Sha256Digest, Nodes::iterator>;
  class PublishChange;

  std::vector<Node*> known_path(std::span<const Sha256Digest> keys, std::span<const std::int32_t> tokens) const;
  Node node_of(const PrefixOffer& offer, std::size_t block, Node* parent) const;
  Checkpoint checkpoint_of(const PrefixOffer& offer, const PrefixCheckpoint& at) const;
  void touch(std::span<Node* const> path) noexcept;
  bool make_room(const PrefixCapacity& wanted) noexcept;
  bool can_make_room(const PrefixCapacity& wanted) const noexcept;
  bool evict_checkpoint() noexcept;
  bool evict_block() noexcept;
  void drop_checkpoint(Node& node) noexcept;
  void drop_leaf(Node& node) noexcept;
  static bool held(const Checkpoint& checkpoint) noexcept;
  static bool held(const Node& node) noexcept;

  StatePool& pool_;
  KvPool* draft_pool_;
  PrefixParts parts_;
  PrefixCapacity capacity_;
  Nodes order_;  // least recently used first; of a path, the node nearer to the root
  Index index_;
  std::int64_t checkpoints_ = 0;
  std::uint64_t version_ = 0;  // grows with every change, so that a stale commit is caught
  Counters counters_;
};

}  // namespace outrider
