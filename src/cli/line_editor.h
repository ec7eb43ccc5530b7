// Lines from the user: edited and with history on a terminal (libedit), plain otherwise.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cli/history_file.h"

namespace outrider {

// What reading a line came to: a line without its newline, the end of input, or Ctrl-C at the prompt.
struct LineRead {
  enum class Kind { line, end, interrupt };
  Kind kind = Kind::line;
  std::string text;
};

class LineEditor {
 public:
  // `history`: file to keep history in; empty: none is kept.
  explicit LineEditor(const std::filesystem::path& history);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // `prompt` goes to the terminal only.
  LineRead read(const std::string& prompt);

 private:
  struct Terminal;
  LineRead read_plain();

  std::optional<HistoryFile> history_;  // terminal only
  std::unique_ptr<Terminal> terminal_;  // null: stdin or stderr is no terminal
  std::string buffered_;                // plain: read, not yet returned
  bool ended_ = false;
};

}  // namespace outrider
