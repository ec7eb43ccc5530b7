// The lines typed into chats, one a line, oldest first: appended as they are entered, so that neither a kill nor a
// second chat loses any. The file is private (0600, its directory 0700).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

class HistoryFile {
 public:
  static constexpr std::size_t kMostLines = 1000;

  // Cuts the file to its last kMostLines. Faults are warnings: a chat works without its history.
  explicit HistoryFile(std::filesystem::path file);
  // The lines the file held at the start.
  const std::vector<std::string>& lines() const { return lines_; }
  // `line` must hold no newline. Warns once when the file cannot be written.
  void append(std::string_view line);

 private:
  int open_locked() const;
  void warn();

  std::filesystem::path file_;
  std::vector<std::string> lines_;
  bool warned_ = false;
};

// ${XDG_STATE_HOME:-~/.local/state}/outrider/history; empty when there is no home.
std::filesystem::path default_history_file();

}  // namespace outrider
