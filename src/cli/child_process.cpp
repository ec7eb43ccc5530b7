#include "cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "cli/interrupts.h"

extern char** environ;

namespace outrider {
namespace {

constexpr int kPollMs = 10, kGraceMs = 1000;

Error failed(const std::string& name, std::string_view what, int code) {
  return {ErrorKind::runtime, fmt::format("{} {}: {}", name, what, std::strerror(code)), "run it by hand to see why"};
}

void close_once(int& descriptor) {
  if (descriptor >= 0) ::close(std::exchange(descriptor, -1));
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  for (const std::string& word : words) out.push_back(const_cast<char*>(word.c_str()));
  out.push_back(nullptr);
  return out;
}

}  // namespace

ChildProcess::ChildProcess(std::string name, const std::vector<std::string>& arguments,
                           const std::optional<std::vector<std::string>>& environment)
    : name_(std::move(name)) {
  int to_child[2] = {-1, -1}, from_child[2] = {-1, -1};
  if (::pipe2(to_child, O_CLOEXEC) != 0) throw failed(name_, "no pipe", errno);
  if (::pipe2(from_child, O_CLOEXEC) != 0) {
    const int code = errno;
    close_once(to_child[0]);
    close_once(to_child[1]);
    throw failed(name_, "no pipe", code);
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
  // Whoever reads a pipe must die of a closed one as usual: we ignore the signal, and children would inherit that.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t usual;
  sigemptyset(&usual);
  sigaddset(&usual, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  const std::vector<char*> words = pointers(arguments);
  const std::vector<char*> variables = pointers(environment.value_or(std::vector<std::string>()));
  const int code =
      ::posix_spawnp(&pid_, words[0], &actions, &attributes, words.data(), environment ? variables.data() : environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close_once(to_child[0]);
  close_once(from_child[1]);
  in_ = to_child[1];
  out_ = from_child[0];
  if (code != 0) {
    pid_ = -1;
    close_pipes();
    throw failed(name_, "cannot be started", code);
  }
}

ChildProcess::~ChildProcess() { wait(); }

void ChildProcess::close_pipes() {
  close_once(in_);
  close_once(out_);
}

void ChildProcess::write_line(std::string_view line) {
  std::string bytes = std::string(line) + "\n";
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const ssize_t count = ::write(in_, rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw failed(name_, "cannot be written to", errno);
    rest.remove_prefix(static_cast<std::size_t>(count));
  }
}

std::optional<std::string> ChildProcess::read_line() {
  while (true) {
    if (const std::size_t end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    if (wait_for_input(out_) == InputWait::interrupted)
      throw Error(ErrorKind::interrupted, fmt::format("interrupted while waiting for {}", name_));
    std::array<char, 4096> buffer;
    const ssize_t count = ::read(out_, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw failed(name_, "cannot be read", errno);
    if (count == 0) return std::nullopt;
    pending_.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

// Polls: the signal that interrupts us may be handled on another thread.
bool ChildProcess::ended_within(int milliseconds, int& status) {
  for (int waited = 0; pid_ >= 0; ++waited) {
    const pid_t found = ::waitpid(pid_, &status, WNOHANG);
    if (found == pid_ || (found < 0 && errno != EINTR)) pid_ = -1;
    if (pid_ < 0 || waited >= milliseconds) break;
    ::poll(nullptr, 0, 1);
  }
  return pid_ < 0;
}

int ChildProcess::wait() {
  close_pipes();
  if (pid_ < 0) return 0;
  int status = 0;
  while (interrupted() == 0 && !ended_within(kPollMs, status)) {
  }
  if (pid_ >= 0 && !ended_within(0, status)) {
    ::kill(pid_, SIGTERM);
    if (!ended_within(kGraceMs, status)) ::kill(pid_, SIGKILL);
    while (!ended_within(kGraceMs, status)) {
    }
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace outrider
