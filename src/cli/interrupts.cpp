#include "cli/interrupts.h"

#include <fcntl.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "base/error.h"

namespace outrider {
namespace {

// What the handler touches: lock-free atomics only.
std::atomic<int> exit_code{0};
std::atomic<long long> last_signal_ms{-1'000'000};
std::atomic<bool> leave_cleanly{false};
// Of the terminal before line editing changed it; set before the descriptor is.
termios terminal_state{};
std::atomic<int> terminal_descriptor{-1};
int wake_pipe[2] = {-1, -1};  // made before the handlers are installed
static_assert(std::atomic<long long>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

extern "C" void on_signal(int number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const long long ms = static_cast<long long>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
  const bool second = ms - last_signal_ms.exchange(ms) < 2000;
  const int code = 128 + number;
  if (second) {
    if (terminal_descriptor >= 0) tcsetattr(terminal_descriptor, TCSANOW, &terminal_state);
    _exit(leave_cleanly && number == SIGINT ? 0 : code);
  }
  exit_code = code;
  const int saved_errno = errno;
  if (write(wake_pipe[1], "", 1) < 0) errno = 0;  // full: it is awake already
  errno = saved_errno;
}

void drain_wake_pipe() {
  char bytes[64];
  while (read(wake_pipe[0], bytes, sizeof bytes) > 0) {
  }
}

}  // namespace

void install_interrupts() {
  if (pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
    throw Error(ErrorKind::runtime, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  struct sigaction action{};
  action.sa_handler = on_signal;  // no SA_RESTART: a read of stdin must return
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);
}

int interrupted() { return exit_code; }

void clear_interrupt() {
  drain_wake_pipe();
  exit_code = 0;
}

// The handler may run on any thread, so a sleeping poll need not be interrupted by it: the pipe wakes it.
InputWait wait_for_input(int descriptor) {
  pollfd waits[2] = {{descriptor, POLLIN, 0}, {wake_pipe[0], POLLIN, 0}};
  while (interrupted() == 0) {
    if (poll(waits, 2, -1) < 0) continue;
    if (waits[1].revents != 0 && interrupted() == 0) drain_wake_pipe();  // of an interrupt dealt with already
    if (waits[0].revents != 0 && interrupted() == 0) return InputWait::ready;
  }
  return InputWait::interrupted;
}

void restore_terminal_at_exit(int descriptor) {
  if (tcgetattr(descriptor, &terminal_state) == 0) terminal_descriptor = descriptor;
}

void set_second_signal(SecondSignal action) { leave_cleanly = action == SecondSignal::exits_cleanly; }

}  // namespace outrider
