#include "cli/line_editor.h"

#include <histedit.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <cwchar>

#include "base/error.h"
#include "cli/interrupts.h"

namespace outrider {
namespace {

// One character of the terminal for libedit, which would itself go on after a signal: here Ctrl-C ends the line.
int read_character(EditLine*, wchar_t* out) {
  std::mbstate_t state{};
  while (true) {
    if (wait_for_input(STDIN_FILENO) == InputWait::interrupted) {
      errno = EINTR;
      return -1;
    }
    char byte = 0;
    const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
    if (count == 0) return 0;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -1;
    const std::size_t used = std::mbrtowc(out, &byte, 1, &state);
    if (used == static_cast<std::size_t>(-2)) continue;  // more bytes of this character to come
    if (used == static_cast<std::size_t>(-1)) {
      state = {};
      continue;
    }
    return 1;
  }
}

}  // namespace

struct LineEditor::Terminal {
  EditLine* editor = nullptr;
  History* history = nullptr;
  HistEvent event{};
  std::string prompt;

  static const char* prompt_of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<Terminal*>(self)->prompt.c_str();
  }

  Terminal() {
    std::setlocale(LC_CTYPE, "");
    if (std::strcmp(std::setlocale(LC_CTYPE, nullptr), "C") == 0) std::setlocale(LC_CTYPE, "C.UTF-8");
    editor = el_init("outrider", stdin, stderr, stderr);
    history = history_init();
    if (editor == nullptr || history == nullptr) throw Error(ErrorKind::runtime, "cannot set up line editing");
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT, &Terminal::prompt_of);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_GETCFN, &read_character);
    ::history(history, &event, H_SETSIZE, static_cast<int>(HistoryFile::kMostLines));
    ::history(history, &event, H_SETUNIQUE, 1);
    el_set(editor, EL_HIST, ::history, history);
  }
  ~Terminal() {
    if (history != nullptr) history_end(history);
    if (editor != nullptr) el_end(editor);
  }
  void remember(const std::string& line) { ::history(history, &event, H_ENTER, line.c_str()); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
};

LineEditor::LineEditor(const std::filesystem::path& history) {
  if (isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1) return;
  restore_terminal_at_exit(STDIN_FILENO);
  terminal_ = std::make_unique<Terminal>();
  if (history.empty()) return;
  history_.emplace(history);
  for (const std::string& line : history_->lines()) terminal_->remember(line + "\n");
}

LineEditor::~LineEditor() = default;

LineRead LineEditor::read(const std::string& prompt) {
  if (!terminal_) return read_plain();
  terminal_->prompt = prompt;
  int count = 0;
  errno = 0;
  const char* line = el_gets(terminal_->editor, &count);
  if (interrupted() != 0) {
    el_reset(terminal_->editor);
    std::fputs("\n", stderr);
    return {LineRead::Kind::interrupt, {}};
  }
  if (line == nullptr || count <= 0) return {LineRead::Kind::end, {}};
  std::string text(line, static_cast<std::size_t>(count));
  const bool has_words = text.find_first_not_of(" \t\r\n") != std::string::npos;
  if (has_words && history_) terminal_->remember(text);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (has_words && history_) history_->append(text);
  return {LineRead::Kind::line, std::move(text)};
}

LineRead LineEditor::read_plain() {
  while (true) {
    const std::size_t newline = buffered_.find('\n');
    if (newline != std::string::npos || (ended_ && !buffered_.empty())) {
      std::string line = buffered_.substr(0, newline);
      buffered_.erase(0, newline == std::string::npos ? std::string::npos : newline + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return {LineRead::Kind::line, std::move(line)};
    }
    if (ended_) return {LineRead::Kind::end, {}};
    if (wait_for_input(STDIN_FILENO) == InputWait::interrupted) return {LineRead::Kind::interrupt, {}};
    std::array<char, 4096> buffer{};
    const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count > 0)
      buffered_.append(buffer.data(), static_cast<std::size_t>(count));
    else if (count == 0)
      ended_ = true;
    else if (errno != EINTR)
      throw Error(ErrorKind::runtime, fmt::format("cannot read stdin: {}", std::strerror(errno)));
  }
}

}  // namespace outrider
