// Changes of several owners that happen all or not at all (runtime.md 1.2 and 1.3).
#pragma once

#include <functional>
#include <memory>
#include <span>

namespace outrider {

// What an owner implements: building it does all that can fail; it then holds the unpublished replacement.
class StateChange {
 public:
  virtual ~StateChange() = default;
  // Publishes by moves only and keeps the superseded state for dispose(). Called at most once.
  virtual void commit() noexcept = 0;
  // Frees what it holds: the replacement before commit(), the superseded state after it. Called at most once.
  virtual void dispose() noexcept = 0;
};

// A change ready to happen. Move-only; the owner it belongs to must outlive it and must not change before commit().
class PreparedStateChange {
 public:
  explicit PreparedStateChange(std::unique_ptr<StateChange> change) : change_(std::move(change)) {}
  PreparedStateChange(PreparedStateChange&&) noexcept = default;
  PreparedStateChange& operator=(PreparedStateChange&& other) noexcept;
  ~PreparedStateChange() { dispose(); }

  // Committing twice or after dispose() is a programming error (CHECK).
  void commit() noexcept;
  // Idempotent.
  void dispose() noexcept;

 private:
  std::unique_ptr<StateChange> change_;  // null after dispose()
  bool committed_ = false;
};

using StatePreparer = std::function<PreparedStateChange()>;

// Prepares all in order. If one throws, the changes already built are disposed, every owner is as it was, and the
// exception passes on. Else commits all in order, then disposes all.
void apply_state_changes(std::span<const StatePreparer> preparers);

}  // namespace outrider
