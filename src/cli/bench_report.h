// What `outrider bench` prints: a table for people as rows come, JSON lines, or one JSON document at the end.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "cli/output.h"
#include "engine/measuring.h"

namespace outrider {

class BenchReport {
 public:
  explicit BenchReport(OutputForm form) : form_(form) {}
  // Rows of one suite. Cut short by a signal or by an error: marked partial.
  void add(std::span<const BenchRow> rows);
  void cut_short() { cut_short_ = true; }
  bool empty() const { return empty_; }
  // With --json, the document.
  void finish();

 private:
  OutputForm form_;
  bool cut_short_ = false, empty_ = true;
  std::string suite_;  // of the last row of the table
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace outrider
