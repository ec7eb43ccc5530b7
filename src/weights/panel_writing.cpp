// The thread that writes a panel file behind the first answer (panel_source.h).
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <chrono>
#include <csignal>
#include <exception>
#include <utility>

#include "base/log.h"
#include "weights/file_error.h"
#include "weights/panel_source.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

// The answer goes first: this thread runs on what processor and disk time is left over.
void become_idle() {
  // A limit on file sizes is an error of write, not the end of the process.
  sigset_t sizes;
  sigemptyset(&sizes);
  sigaddset(&sizes, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &sizes, nullptr);
#ifdef __linux__
  const sched_param none{};
  pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
  constexpr int kWhoThread = 1, kClassIdle = 3 << 13;  // IOPRIO_WHO_PROCESS, IOPRIO_CLASS_IDLE; no libc has them
  syscall(SYS_ioprio_set, kWhoThread, 0, kClassIdle);
  pthread_setname_np(pthread_self(), "panels");
#endif
}

// Twice the file, so that it is never the one to fill a disk.
void check_space(const fs::path& directory, std::uint64_t bytes) {
  const std::uint64_t available = fs::space(directory).available;
  if (available / 2 < bytes)
    throw Error(ErrorKind::runtime, fmt::format("{} has {} bytes free, twice the {} of a panel file are wanted",
                                                directory.string(), available, bytes));
}

// No wider than the access to any file the weights come from.
mode_t access_of(const PanelJob& job) {
  mode_t mode = 0644;
  for (const OpenedFile& file : job.sources) {
    struct stat status{};
    if (stat(file.path.c_str(), &status) == 0) mode &= status.st_mode | 0600;
  }
  return mode;
}

PanelWrite write_to(const fs::path& place, const PanelJob& job, const std::function<bool()>& stop) {
  std::error_code failed;
  fs::create_directories(place.parent_path(), failed);
  if (failed)
    throw Error(ErrorKind::runtime,
                fmt::format("cannot create {}: {}", place.parent_path().string(), failed.message()));
  check_space(place.parent_path(), panel_file_bytes(job.contents));
  return write_panel_file(place, job.fingerprint, job.contents, access_of(job), stop,
                          [&] { return unchanged(job.sources); });
}

std::string_view reason_of(PanelWrite result) {
  return result == PanelWrite::busy       ? "another process is writing it"
         : result == PanelWrite::outdated ? "the model has changed since it was opened"
                                          : "interrupted";
}

// The first place that takes the file ends the search, and so does a reason that holds for all of them.
void write_somewhere(const PanelJob& job, const std::function<bool()>& stop) {
  std::string refusals;
  for (const fs::path& place : job.places) {
    try {
      const auto begin = std::chrono::steady_clock::now();
      const PanelWrite result = write_to(place, job, stop);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (result == PanelWrite::written)
        log(LogLevel::info, "{}: the packed weights are kept for the next start ({} bytes in {:.1f} s)", place.string(),
            panel_file_bytes(job.contents), seconds);
      else
        log(LogLevel::info, "{}: not written, {}", place.string(), reason_of(result));
      return;
    } catch (const std::exception& error) {
      refusals += fmt::format("{}{}", refusals.empty() ? "" : "; ", error.what());
    }
  }
  log(LogLevel::info,
      "the packed weights are not kept, the next start packs them again: {} (--panel-file off: no attempt)", refusals);
}

}  // namespace

PanelWriting::PanelWriting(PanelJob job, std::function<bool()> interrupted)
    : job_(std::move(job)), interrupted_(std::move(interrupted)), thread_([this] {
        become_idle();
        write_somewhere(job_, [this] {
          return std::chrono::steady_clock::now() > deadline_.load() || (interrupted_ && interrupted_());
        });
        finished_ = true;
      }) {}

PanelWriting::~PanelWriting() {
  if (finished_) return;
  const bool failing = std::uncaught_exceptions() > 0;
  deadline_ = std::chrono::steady_clock::now() + (failing ? std::chrono::seconds(0) : kPatience);
  if (failing) return;
  log(LogLevel::info, "keeping the packed weights for the next start, at most {} s (--panel-file off: never)",
      kPatience.count());
#ifdef __linux__
  const sched_param none{};
  pthread_setschedparam(thread_.native_handle(), SCHED_OTHER, &none);
#endif
}

}  // namespace outrider
