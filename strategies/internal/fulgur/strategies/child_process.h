#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/strategies/cluster_environment.h"
#include "fulgur/strategies/signal_pipe.h"

namespace fulgur::detail {

/// Variable of a process whose OMP_NUM_THREADS was decided for it: its launcher divides that number by its processes.
inline constexpr const char* kDivideThreads = "FULGUR_DIVIDE_THREADS";

/// How a process has ended.
struct ProcessEnd {
  bool by_signal = false;
  int value = 0;  ///< the signal, or the exit code
};

/// A process that dies with this one, in its own process group. The destructor kills and reaps it.
class FULGUR_API ChildProcess {
 public:
  /// Throws a DistributedError if `program` cannot be started. The child gets its original handling of `signals`.
  /// `output`, a file descriptor, becomes its stdout and stderr; -1: those of this process.
  ChildProcess(const std::filesystem::path& program, const std::vector<std::string>& arguments, Environment environment,
               const SignalPipe& signals, int output = -1);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  /// How it ended, reported once; nullopt while it is running. Processes that a failed one had started are killed with
  /// it.
  std::optional<ProcessEnd> reap();
  bool running() const { return pid_ > 0; }
  void send(int signal) const;
  /// Kills its whole process group.
  void kill() const;
  /// What it passed to `tell_launcher`.
  std::string words();

 private:
  pid_t pid_ = -1;
  int words_ = -1;
};

}  // namespace fulgur::detail
