#include "state/prefix_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/failure_injection.h"

namespace outrider {
namespace {

// What a node takes beside its block: its ids and links, its places in the list and the index, and what the heap adds.
constexpr std::size_t kNodeBytes = 768;
// The same of a checkpoint beside slot and hidden.
constexpr std::size_t kCheckpointBytes = 256;
// 512 tokens: about a turn of a conversation.
constexpr std::uint64_t kBlocksPerCheckpoint = 8;

void add_field(Sha256& hash, std::string_view field) {
  hash.add(fmt::format("{}:", field.size()));
  hash.add(field);
}

}  // namespace

Sha256Digest prefix_root(std::string_view model_key, const PrefixScope& scope) {
  Sha256 hash;
  for (const std::string_view field :
       {std::string_view("outrider prefix 1"), model_key, std::string_view(scope.adapter),
        std::string_view(scope.tenant), std::string_view(scope.salt)})
    add_field(hash, field);
  return hash.finish();
}

std::span<const Sha256Digest> PrefixChain::keys(std::span<const std::int32_t> tokens, std::int64_t blocks) {
  OUTRIDER_CHECK(blocks >= 0 && blocks * kBlockKeys <= std::ssize(tokens), "keys of {} blocks of {} tokens", blocks,
                 tokens.size());
  while (std::ssize(keys_) < blocks) {
    Sha256 hash;
    hash.add(std::as_bytes(std::span(keys_.empty() ? root_ : keys_.back())));
    hash.add(std::as_bytes(tokens.subspan(keys_.size() * kBlockKeys, kBlockKeys)));
    keys_.push_back(hash.finish());
  }
  return std::span(keys_).first(static_cast<std::size_t>(blocks));
}

std::size_t PrefixParts::node_bytes() const { return block_bytes + draft_block_bytes + kNodeBytes; }

std::size_t PrefixParts::checkpoint_bytes() const {
  return slot_bytes + static_cast<std::size_t>(hidden_width) * sizeof(float) + kCheckpointBytes;
}

PrefixCapacity prefix_capacity(const PrefixParts& parts, std::uint64_t bytes) {
  const std::uint64_t node = parts.node_bytes(), checkpoint = parts.checkpoint_bytes();
  if (parts.any_block()) return {static_cast<std::int64_t>(bytes / node), 0};
  if (bytes < node + checkpoint) return {};
  const std::uint64_t checkpoints = std::max<std::uint64_t>(bytes / (kBlocksPerCheckpoint * node + checkpoint), 1);
  return {static_cast<std::int64_t>((bytes - checkpoints * checkpoint) / node), static_cast<std::int64_t>(checkpoints)};
}

PrefixStore::PrefixStore(StatePool& pool, KvPool* draft_pool, const PrefixParts& parts, const PrefixCapacity& capacity)
    : pool_(pool), draft_pool_(draft_pool), parts_(parts), capacity_(capacity) {
  OUTRIDER_CHECK((draft_pool == nullptr) == (parts.draft_block_bytes == 0) &&
                     (pool.recurrent() == nullptr) == (parts.slot_bytes == 0),
                 "a prefix store of other parts than its pools");
}

PrefixStore::~PrefixStore() = default;

// --- Publishing ---

// The nodes and checkpoints an offer adds, built aside.
class PrefixStore::PublishChange : public StateChange {
 public:
  PublishChange(PrefixStore& store, std::vector<Node*> path, const PrefixOffer& offer)
      : store_(store), version_(store.version_), path_(std::move(path)), left_end_(offer.left_end) {
    if (offer.superseded > 0 && offer.superseded / kBlockKeys <= std::ssize(path_))
      superseded_ = path_[static_cast<std::size_t>(offer.superseded / kBlockKeys - 1)];
  }

  void add_blocks(const PrefixOffer& offer) {
    Node* parent = path_.empty() ? nullptr : path_.back();
    for (std::size_t block = path_.size(); block < offer.keys.size(); ++block) {
      fresh_.push_back(store_.node_of(offer, block, parent));
      fresh_index_.emplace(offer.keys[block], std::prev(fresh_.end()));
      parent = &fresh_.back();
    }
  }
  void add_checkpoints(const PrefixOffer& offer) {
    added_.reserve(offer.checkpoints.size());
    for (const PrefixCheckpoint& at : offer.checkpoints) {
      const auto block = static_cast<std::size_t>(at.position / kBlockKeys - 1);
      Node* node = block < path_.size() ? path_[block] : &*fresh_index_.at(offer.keys[block]);
      if (!node->checkpoint) added_.emplace_back(node, store_.checkpoint_of(offer, at));
      adds_end_ = !node->checkpoint;  // the last one is at the end
    }
  }

  void commit() noexcept override {
    OUTRIDER_CHECK(store_.version_ == version_, "the prefix store changed after prepare_publish");
    ++store_.version_;
    store_.touch(path_);
    const bool supersedes = superseded_ != nullptr && superseded_->checkpoint && !superseded_->checkpoint->restored &&
                            !held(*superseded_->checkpoint);
    for (Node* node : path_) node->kept = true;
    const bool fits = store_.make_room({std::ssize(fresh_), std::ssize(added_) - (supersedes ? 1 : 0)});
    for (Node* node : path_) node->kept = false;
    if (left_end_ != nullptr) *left_end_ = fits && adds_end_;
    if (!fits) {
      ++store_.counters_.refused;
      return;
    }
    if (supersedes) store_.drop_checkpoint(*superseded_);
    if (!fresh_.empty() || !added_.empty()) ++store_.counters_.published;
    for (auto& [node, checkpoint] : added_) node->checkpoint.emplace(std::move(checkpoint));
    store_.checkpoints_ += std::ssize(added_);
    for (Node& node : fresh_)
      if (node.parent != nullptr) ++node.parent->children;
    store_.order_.splice(store_.order_.end(), fresh_);
    store_.index_.merge(fresh_index_);
  }
  void dispose() noexcept override {
    added_.clear();
    fresh_index_.clear();
    fresh_.clear();
  }

 private:
  PrefixStore& store_;
  std::uint64_t version_;
  std::vector<Node*> path_;  // what is known of the offer
  Node* superseded_ = nullptr;
  Nodes fresh_;
  Index fresh_index_;
  std::vector<std::pair<Node*, Checkpoint>> added_;
  bool adds_end_ = false;
  bool* left_end_;
};

PreparedStateChange PrefixStore::prepare_publish(const PrefixOffer& offer) {
  fallible_point("PrefixStore::prepare_publish");
  const std::int64_t end = std::ssize(offer.keys) * kBlockKeys;
  OUTRIDER_CHECK(end > 0 && std::ssize(offer.tokens) == end && offer.row->length() >= end,
                 "an offer of {} keys and {} tokens of a row of {}", offer.keys.size(), offer.tokens.size(),
                 offer.row->length());
  OUTRIDER_CHECK(parts_.any_block() ? offer.checkpoints.empty()
                                    : !offer.checkpoints.empty() && offer.checkpoints.back().position == end,
                 "{} checkpoints in an offer up to {}", offer.checkpoints.size(), end);
  OUTRIDER_CHECK(
      (offer.draft != nullptr) == (draft_pool_ != nullptr) && (offer.draft == nullptr || offer.draft->length() >= end),
      "an offer with too little draft KV");
  std::vector<Node*> path = known_path(offer.keys, offer.tokens);
  // Other tokens under the next key: those that were there first stay.
  const bool foreign = path.size() < offer.keys.size() && index_.contains(offer.keys[path.size()]);
  auto change = std::make_unique<PublishChange>(*this, std::move(path), offer);
  if (!foreign) {
    change->add_blocks(offer);
    change->add_checkpoints(offer);
  }
  return PreparedStateChange(std::move(change));
}

// Nodes of the longest known beginning, the first block first.
std::vector<PrefixStore::Node*> PrefixStore::known_path(std::span<const Sha256Digest> keys,
                                                        std::span<const std::int32_t> tokens) const {
  std::vector<Node*> path;
  for (std::size_t block = 0; block < keys.size(); ++block) {
    const auto found = index_.find(keys[block]);
    if (found == index_.end()) break;
    Node& node = *found->second;
    const auto ids = tokens.subspan(block * kBlockKeys, kBlockKeys);
    if (!std::equal(ids.begin(), ids.end(), node.tokens.begin())) break;
    path.push_back(&node);
  }
  return path;
}

PrefixStore::Node PrefixStore::node_of(const PrefixOffer& offer, std::size_t block, Node* parent) const {
  const auto index = static_cast<std::int64_t>(block);
  Node node{.key = offer.keys[block],
            .parent = parent,
            .blocks = index + 1,
            .kv = offer.row->kv().share_block(index),
            .draft = std::nullopt,
            .checkpoint = std::nullopt};
  const auto ids = offer.tokens.subspan(block * kBlockKeys, kBlockKeys);
  std::copy(ids.begin(), ids.end(), node.tokens.begin());
  if (offer.draft != nullptr) node.draft.emplace(offer.draft->share_block(index));
  return node;
}

PrefixStore::Checkpoint PrefixStore::checkpoint_of(const PrefixOffer& offer, const PrefixCheckpoint& at) const {
  OUTRIDER_CHECK(at.position > 0 && at.position % kBlockKeys == 0 && std::ssize(at.hidden) == parts_.hidden_width,
                 "a checkpoint at {} with a hidden of {}, not {}", at.position, at.hidden.size(), parts_.hidden_width);
  Checkpoint checkpoint;
  if (parts_.slot_bytes > 0) {
    checkpoint.state.emplace(offer.row->recurrent()->prefix(at.position));
    checkpoint.state->drop_checkpoints();
  }
  if (parts_.hidden_width > 0) {
    checkpoint.hidden = AlignedBuffer(at.hidden.size_bytes(), MemoryPart::prefix);
    std::memcpy(checkpoint.hidden.data(), at.hidden.data(), at.hidden.size_bytes());
  }
  return checkpoint;
}

// --- Restoring ---

std::optional<PrefixStore::Hit> PrefixStore::restore(std::span<const Sha256Digest> keys,
                                                     std::span<const std::int32_t> tokens) {
  fallible_point("PrefixStore::restore");
  std::vector<Node*> path = known_path(keys, tokens);
  while (!path.empty() && !parts_.any_block() && !path.back()->checkpoint) path.pop_back();
  ++counters_.lookups;
  if (path.empty()) return std::nullopt;
  std::vector<const KvBlock*> kv, draft;
  for (const Node* node : path) {
    kv.push_back(&node->kv);
    if (node->draft) draft.push_back(&*node->draft);
  }
  std::optional<Checkpoint>& checkpoint = path.back()->checkpoint;
  std::optional<RecurrentRow> state;
  if (parts_.slot_bytes > 0) state.emplace(checkpoint->state->clone());
  Hit hit{std::ssize(path) * kBlockKeys, StateRow(KvRow(pool_.kv(), kv), std::move(state)), std::nullopt, {}};
  if (draft_pool_ != nullptr) {
    hit.draft.emplace(*draft_pool_, draft);
    hit.hidden = std::as_const(checkpoint->hidden).as<float>();
  }
  if (checkpoint) checkpoint->restored = true;
  touch(path);
  ++version_;
  ++counters_.hits;
  counters_.hit_tokens += hit.tokens;
  return hit;
}

void PrefixStore::touch(std::span<Node* const> path) noexcept {
  for (const Node* node : path) order_.splice(order_.end(), order_, index_.find(node->key)->second);
}

// --- Evicting ---

std::int64_t PrefixStore::make_room_for_checkpoints(std::int64_t wanted) noexcept {
  ++version_;
  while (wanted > 0 && !make_room({0, wanted})) --wanted;
  return wanted;
}

// False: nothing was evicted, or what could be was not enough.
bool PrefixStore::make_room(const PrefixCapacity& wanted) noexcept {
  if (!can_make_room(wanted)) return false;
  const auto lacks_blocks = [&] { return blocks() + wanted.blocks > capacity_.blocks; };
  const auto lacks_checkpoints = [&] { return checkpoints_ + wanted.checkpoints > capacity_.checkpoints; };
  while (lacks_blocks() && evict_block()) {
  }
  while (lacks_checkpoints() && evict_checkpoint()) {
  }
  return !lacks_blocks() && !lacks_checkpoints();
}

// At best: a leaf that a row holds keeps its parents, too.
bool PrefixStore::can_make_room(const PrefixCapacity& wanted) const noexcept {
  if (wanted.blocks > capacity_.blocks || wanted.checkpoints > capacity_.checkpoints) return false;
  std::int64_t free_blocks = capacity_.blocks - blocks(), free_checkpoints = capacity_.checkpoints - checkpoints_;
  for (auto node = order_.begin(); node != order_.end(); ++node) {
    if (free_blocks >= wanted.blocks && free_checkpoints >= wanted.checkpoints) return true;
    if (node->kept) continue;
    if (!held(*node)) ++free_blocks;
    if (node->checkpoint && !held(*node->checkpoint)) ++free_checkpoints;
  }
  return free_blocks >= wanted.blocks && free_checkpoints >= wanted.checkpoints;
}

bool PrefixStore::evict_block() noexcept {
  const auto found =
      std::find_if(order_.begin(), order_.end(), [](const Node& n) { return !n.kept && n.children == 0 && !held(n); });
  if (found == order_.end()) return false;
  drop_leaf(*found);
  ++counters_.evicted;
  return true;
}

bool PrefixStore::evict_checkpoint() noexcept {
  const auto found = std::find_if(order_.begin(), order_.end(), [](const Node& n) {
    return !n.kept && n.checkpoint && !held(*n.checkpoint) && (n.children > 0 || !held(n));
  });
  if (found == order_.end()) return false;
  if (found->children > 0)
    drop_checkpoint(*found);
  else
    drop_leaf(*found);
  ++counters_.evicted;
  return true;
}

bool PrefixStore::held(const Checkpoint& checkpoint) noexcept {
  return checkpoint.state && checkpoint.state->state_is_shared();
}

bool PrefixStore::held(const Node& node) noexcept {
  return node.kv.shared() || (node.draft && node.draft->shared()) || (node.checkpoint && held(*node.checkpoint));
}

void PrefixStore::drop_checkpoint(Node& node) noexcept {
  node.checkpoint.reset();
  --checkpoints_;
}

// The leaf, and the blocks before it that led to nothing else.
void PrefixStore::drop_leaf(Node& leaf) noexcept {
  for (Node* node = &leaf; node != nullptr;) {
    if (node->checkpoint) drop_checkpoint(*node);
    Node* parent = node->parent;
    const auto place = index_.find(node->key);
    order_.erase(place->second);
    index_.erase(place);
    if (parent == nullptr || --parent->children > 0) return;
    const bool boundary = parts_.any_block() || parent->checkpoint.has_value();
    node = boundary || parent->kept || held(*parent) ? nullptr : parent;
  }
}

}  // namespace outrider
