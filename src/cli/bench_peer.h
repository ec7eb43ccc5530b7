// A peer: another engine with the same model, loaded once in a process of its own and told what to run.
//
// The protocol is JSON lines. The peer writes first, when its model is loaded:
//   {"peer": "llama.cpp Q4_0", "most_context": 2048, "most_rows": 8}
// then answers each line
//   {"rows": 1, "tokens": 3, "context": 0, "head": "every"}       (StepShape; head is "last" or "every")
// with {"seconds": 0.0412} for one run of it, or {"error": "..."}; and leaves when its stdin ends.
#pragma once

#include <cstdint>
#include <string>

#include "cli/child_process.h"
#include "engine/speed.h"

namespace outrider {

class BenchPeer {
 public:
  // Runs `command` by the shell and waits until it is ready. Error (runtime) when it is no peer.
  explicit BenchPeer(const std::string& command);
  const std::string& name() const { return name_; }
  bool runs(const StepShape& shape) const { return shape.context <= most_context_ && shape.rows <= most_rows_; }
  double seconds(const StepShape& shape);

 private:
  std::string command_, name_;
  ChildProcess process_;
  std::int64_t most_context_ = 0, most_rows_ = 0;
};

}  // namespace outrider
