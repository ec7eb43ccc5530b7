#include "base/state_change.h"

#include <utility>
#include <vector>

#include "base/error.h"

namespace outrider {

PreparedStateChange& PreparedStateChange::operator=(PreparedStateChange&& other) noexcept {
  if (this != &other) {
    dispose();
    change_ = std::move(other.change_);
    committed_ = std::exchange(other.committed_, false);
  }
  return *this;
}

void PreparedStateChange::commit() noexcept {
  OUTRIDER_CHECK(change_ != nullptr, "commit of a state change that was disposed");
  OUTRIDER_CHECK(!committed_, "commit of a state change that was committed");
  committed_ = true;
  change_->commit();
}

void PreparedStateChange::dispose() noexcept {
  if (change_ == nullptr) return;
  change_->dispose();
  change_.reset();
}

void apply_state_changes(std::span<const StatePreparer> preparers) {
  std::vector<PreparedStateChange> changes;
  changes.reserve(preparers.size());
  // A throw leaves through the vector, whose elements dispose themselves.
  for (const StatePreparer& prepare : preparers) changes.push_back(prepare());
  for (PreparedStateChange& change : changes) change.commit();
  for (PreparedStateChange& change : changes) change.dispose();
}

}  // namespace outrider
