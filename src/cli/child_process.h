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
  // Starts `arguments[0]` (a path, or a name searched in PATH), with our environment or the one given ("NAME=value").
  // Errors call it `name`. Error (runtime) when it cannot be started.
  ChildProcess(std::string name, const std::vector<std::string>& arguments,
               const std::optional<std::vector<std::string>>& environment = {});
  // wait()
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Error (runtime) when the child has gone.
  void write_line(std::string_view line);
  // The next line without its end; nothing at the end of the output. Error (interrupted) when a signal came.
  std::optional<std::string> read_line();
  // Closes the pipes, so that a program that reads its stdin to the end leaves, and waits for its end: the exit code,
  // or 128 + the signal. When a signal came to us the child is asked to end (SIGTERM), and a second later it is killed.
  int wait();

 private:
  void close_pipes();
  bool ended_within(int milliseconds, int& status);

  std::string name_;
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
  std::string pending_;
};

}  // namespace outrider
