#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "command_line.h"
#include "fulgur/history/sweep_state.h"
#include "fulgur/strategies/child_process.h"
#include "fulgur/strategies/signal_pipe.h"
#include "sweep/trial_process.h"

namespace fulgur::cli {

/// Throws a ConfigError if a trial has failed because its run has not logged the metric, and no trial has a value of
/// it.
void check_metric(const std::vector<history::TrialRecord>& trials);

/// Starts the trials of a sweep as processes of this program, until none is left or a signal ends the sweep. None
/// outlives this process.
class SweepRunner {
 public:
  /// `save` writes the records: before a trial starts and after it has ended. `slots`: of `command`.
  SweepRunner(const CommandLine& command, const std::string& program, const history::SweepPlan& plan,
              std::vector<history::TrialRecord>& trials, std::filesystem::path folder, TrialSlots slots,
              std::function<void()> save);

  /// How the sweep was ended.
  struct End {
    int signal = 0;        ///< that ended it; 0: none
    bool at_once = false;  ///< by a second signal
  };
  /// Throws what went wrong with the sweep itself, such as a full disk or a metric that no trial logs, after the
  /// running trials have saved and ended as after SIGTERM.
  End run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot {
    std::unique_ptr<detail::ChildProcess> process;
    size_t trial = 0;
  };

  void start_trials();
  void start(Slot& slot, size_t trial);
  void wait();
  void take_signal(int signal);
  void stop_trials(int signal);
  template <class Step>
  void guarded(Step step);
  void reap();
  void finish(size_t trial, const detail::ProcessEnd& end, const std::string& words);
  void judge(history::TrialRecord& record, history::TrialStatus found, const detail::ProcessEnd& end,
             const std::string& words) const;
  bool is_running() const;

  const CommandLine& command_;
  std::string program_;
  const history::SweepPlan& plan_;
  std::vector<history::TrialRecord>& trials_;
  std::filesystem::path folder_;
  std::function<void()> save_;
  TrialSlots slots_of_devices_;
  detail::SignalPipe signals_;  // outlives the processes
  std::vector<Slot> slots_;
  std::set<size_t> set_aside_;  // trials that were stopped from outside: the next sweep resumes them
  End end_;
  bool killed_ = false;
  std::exception_ptr error_;  // of the sweep itself
  Clock::time_point stopped_at_{};
};

}  // namespace fulgur::cli
