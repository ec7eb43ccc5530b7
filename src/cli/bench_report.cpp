#include "cli/bench_report.h"

#include "cli/interrupts.h"

namespace outrider {
namespace {

nlohmann::ordered_json or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

// Every key in every row, null where there is nothing: readers need no cases.
nlohmann::ordered_json document(const BenchRow& row, bool partial) {
  nlohmann::ordered_json out = {
      {"suite", row.suite},
      {"case", row.name},
      {"value", row.value},
      {"unit", row.unit},
      {"limit", or_null(row.limit)},
      {"of_limit", or_null(row.of_limit)},
      {"peer", row.peer.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(row.peer)},
      {"peer_value", or_null(row.peer_value)},
      {"ratio", or_null(row.ratio)}};
  if (partial) out["partial"] = true;
  return out;
}

// Four digits say more than a measurement knows.
std::string number(double value) { return fmt::format("{:#.4g}", value); }

std::string line(const BenchRow& row) {
  std::string out = fmt::format("  {:<40} {:>9} {:<7}", row.name, number(row.value), row.unit);
  if (row.limit) out += fmt::format(" {:>5.1f} % of {}", 100 * *row.of_limit, number(*row.limit));
  if (row.ratio) out += fmt::format("  {:.2f}x {} ({})", *row.ratio, row.peer, number(*row.peer_value));
  return out + "\n";
}

}  // namespace

void BenchReport::add(std::span<const BenchRow> rows) {
  for (const BenchRow& row : rows) {
    empty_ = false;
    const bool partial = cut_short_ || interrupted() != 0;
    if (form_ == OutputForm::json) {
      rows_.push_back(document(row, partial));
    } else if (form_ == OutputForm::jsonl) {
      write_json(document(row, partial));
    } else {
      write_stdout((row.suite == suite_ ? "" : row.suite + "\n") + line(row));
      suite_ = row.suite;
    }
  }
}

void BenchReport::finish() {
  if (form_ != OutputForm::json) return;
  nlohmann::ordered_json out = {{"rows", std::move(rows_)}};
  if (cut_short_ || interrupted() != 0) out["partial"] = true;
  write_json(out);
}

}  // namespace outrider
