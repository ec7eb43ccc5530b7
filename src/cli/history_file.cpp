#include "cli/history_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include "base/log.h"

namespace outrider {
namespace {

bool write_all(int descriptor, std::string_view bytes, off_t at) {
  while (!bytes.empty()) {
    const ssize_t count =
        at < 0 ? write(descriptor, bytes.data(), bytes.size()) : pwrite(descriptor, bytes.data(), bytes.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
    if (at >= 0) at += count;
  }
  return true;
}

std::string read_all(int descriptor) {
  std::string text;
  std::array<char, 65536> buffer{};
  while (true) {
    const ssize_t count = pread(descriptor, buffer.data(), buffer.size(), static_cast<off_t>(text.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

std::filesystem::path default_history_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state != '\0') return std::filesystem::path(state) / "outrider" / "history";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return {};
  return std::filesystem::path(home) / ".local" / "state" / "outrider" / "history";
}

// -1: it cannot be opened. The lock keeps one chat's cut from losing another's line; it ends with the descriptor.
int HistoryFile::open_locked() const {
  const int descriptor = open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor >= 0) {
    struct stat facts{};
    const bool plain = fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode);
    if (!plain || fchmod(descriptor, 0600) != 0 || flock(descriptor, LOCK_EX) != 0) {
      close(descriptor);
      return -1;
    }
  }
  return descriptor;
}

HistoryFile::HistoryFile(std::filesystem::path file) : file_(std::move(file)) {
  std::error_code fault;
  const mode_t before = umask(077);
  std::filesystem::create_directories(file_.parent_path(), fault);
  umask(before);
  const int descriptor = open_locked();
  if (descriptor < 0) {
    warn();
    return;
  }
  lines_ = lines_of(read_all(descriptor));
  if (lines_.size() > kMostLines) {
    lines_.erase(lines_.begin(), lines_.end() - static_cast<std::ptrdiff_t>(kMostLines));
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    // The kept lines first, the cut after them: a kill in between doubles lines and loses none.
    if (!write_all(descriptor, text, 0) || ftruncate(descriptor, static_cast<off_t>(text.size())) != 0) warn();
  }
  close(descriptor);
}

void HistoryFile::append(std::string_view line) {
  const int descriptor = open_locked();
  if (descriptor < 0) return warn();
  const bool at_end = fcntl(descriptor, F_SETFL, O_APPEND) == 0;
  if (!at_end || !write_all(descriptor, std::string(line) + "\n", -1)) warn();
  close(descriptor);
}

void HistoryFile::warn() {
  if (!warned_) log(LogLevel::warning, "cannot keep the history in {}", file_.string());
  warned_ = true;
}

}  // namespace outrider
