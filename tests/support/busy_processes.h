#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <vector>

namespace fulgur::test {

/// Processes that compute all the time, until this one destroys them or ends.
class BusyProcesses {
 public:
  explicit BusyProcesses(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (std::atomic<unsigned> work = 0;; ++work) {
        }
      }
      if (child > 0) children_.push_back(child);
    }
  }
  ~BusyProcesses() {
    for (const pid_t child : children_) ::kill(child, SIGKILL);
    for (const pid_t child : children_) ::waitpid(child, nullptr, 0);
  }
  BusyProcesses(const BusyProcesses&) = delete;
  BusyProcesses& operator=(const BusyProcesses&) = delete;

 private:
  std::vector<pid_t> children_;
};

}  // namespace fulgur::test
