// A program run as a child that is talked to by lines: its stdin and stdout are pipes, its stderr is ours.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

class ChildProcess {
 public:
  // Starts `arguments[0]` (a path, or a name searched in PATH). Error (runtime) when it cannot be started.
  explicit ChildProcess(const std::vector<std::string>& arguments);
  // Closes the pipes, so that a program that reads its stdin to the end leaves; then waits for it.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Error (runtime) when the child has gone.
  void write_line(std::string_view line);
  // The next line without its end; nothing at the end of the output. Error (interrupted) when a signal came.
  std::optional<std::string> read_line();
  // Waits for its end: the exit code, or 128 + the signal.
  int wait();

 private:
  void close_pipes();

  std::string name_;
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
  std::string pending_;
};

}  // namespace outrider
