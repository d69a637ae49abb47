#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fulgur/history/run.h"
#include "fulgur/history/runs_table.h"

namespace fulgur::history {

/// How long the lock of a run that trained must be free until the run has ended: a launcher may start it again.
struct RestartWait {
  double usual_s = 2;  ///< for a run that is not finished
  /// For a run that failed or was killed, with `max_restarts` in its config: the other ranks have 20 s to end, and the
  /// new ones must start.
  double launcher_s = 60;
};

/// Follows a run, which usually trains in another process: reads the rows that it adds to its log.
class FULGUR_API RunWatcher {
 public:
  /// Throws as read_run does.
  explicit RunWatcher(const std::filesystem::path& folder, const RestartWait& wait = {});
  ~RunWatcher();
  RunWatcher(const RunWatcher&) = delete;
  RunWatcher& operator=(const RunWatcher&) = delete;

  /// Reads what is new. Returns false if the run has ended; everything is read then. A run whose lock is free has ended
  /// if it is finished, if this watcher has never seen it running, or if the lock has been free for the RestartWait.
  /// Throws a DataError for a damaged row.
  bool poll();

  /// One line for each row that the last poll() read, `step 5  epoch 0  train_loss=0.5`. A run that is resumed removes
  /// rows and writes them again; a line says so, and another one that a launcher may restart the run.
  const std::vector<std::string>& new_lines() const;

  /// The state of the run and the last values of its metrics, as at most `rows` lines that fit into the terminal.
  std::string screen(const TextStyle& style, int64_t rows) const;

  /// One line that says how the run stands or has ended.
  std::string summary() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur::history
