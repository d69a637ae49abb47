#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/contracts/run_context.h"
#include "fulgur/core/options/log_options.h"
#include "fulgur/core/state/media.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur {

enum class RunStatus { success, failed, interrupted };

/// Destination of metrics. Exists on rank 0 only. Calls of one logger are never concurrent.
///
/// By default all calls come from the run's thread, and an exception ends the run. If `may_block` is true, the Trainer
/// gives the logger a thread: `start`, everything that logs, `state`, `flush` and `finalize` are called there, in the
/// order in which the run logged; the other functions are called on the run's thread before `start`. An exception then
/// means that the entry could not be sent now: the call is repeated later with the same arguments, and the run
/// continues. A logger must not throw for what can never be sent. While it waits, it asks `must_return`.
class FULGUR_API Logger {
 public:
  static constexpr const char* kRegistryKind = "logger";

  virtual ~Logger();
  /// Folder name and version that this logger requests for the run; the first logger's choice counts.
  virtual std::optional<std::string> run_name() const { return std::nullopt; }
  virtual std::optional<int64_t> run_version() const { return std::nullopt; }
  /// Key of this logger's state in a checkpoint, by default the class name. Loggers with the same key are matched in
  /// order.
  virtual std::string state_key() const;
  /// Whether its functions may take long, because they wait for a network or another process.
  virtual bool may_block() const { return false; }
  /// Returns how much has been written, for a checkpoint. Everything logged so far is in the files by then. Null if the
  /// logger cannot tell, or if its files cannot be written at the moment. If `may_block`, it is called after each
  /// entry, and a checkpoint gets the newest result: entries that wait are not part of it.
  virtual StateTree state() { return nullptr; }
  /// Called before `start` when a run resumes, with the state from the checkpoint. `start` then truncates the files at
  /// exactly that place. Not called if the checkpoint has no state of this logger.
  virtual void load_state(const StateTree& /*state*/) {}
  /// Opens its files under the run folder. `resume_step` is the step from which the run resumes; without a state, rows
  /// with a later step are removed, since the resumed run writes them again.
  virtual void start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step) = 0;
  virtual void log_hyperparams(const ConfigNode& /*hparams*/) {}
  /// Logs one row: the values at global step `step`, including `epoch`.
  virtual void log_metrics(const Metrics& metrics, int64_t step) = 0;
  /// Logs a picture, histogram, text or table at global step `step`; see `as_logged` for its tensors. The default does
  /// nothing.
  virtual void log_media(const MediaRecord& /*record*/, int64_t /*step*/) {}
  /// Keeps a file, or a folder with all that is in it, with the run. The default does nothing.
  virtual void log_artifact(const std::filesystem::path& /*path*/) {}
  virtual void after_save_checkpoint(const CheckpointInfo& /*info*/) {}
  /// Writes everything that was logged to the files before it returns. If `may_block`, it is called when nothing waits,
  /// and throws if something could not be sent; it is then called again.
  virtual void flush() {}
  /// Called at the end of the run, however it ends. Never throws.
  virtual void finalize(RunStatus status) noexcept = 0;

 protected:
  /// When the run logged what the logger is being called with. Inside a logger's thread this is earlier than now.
  static std::chrono::system_clock::time_point logged_at();
  /// Whether the run has ended and does not wait any longer for the call that is under way. A logger that waits for a
  /// network asks this every second, and then throws. A thread whose call does not return is abandoned: its logger is
  /// not finalized, and gets nothing from later runs before the call returns. False outside a logger's thread.
  static bool must_return();
};

/// Sets `Logger::logged_at` of this thread during its lifetime.
class FULGUR_API LoggedAt {
 public:
  explicit LoggedAt(std::chrono::system_clock::time_point time);
  ~LoggedAt();
  LoggedAt(const LoggedAt&) = delete;
  LoggedAt& operator=(const LoggedAt&) = delete;
};

/// `Logger::must_return` of this thread is the value of `flag` during its lifetime.
class FULGUR_API MustReturn {
 public:
  explicit MustReturn(const std::atomic<bool>& flag);
  ~MustReturn();
  MustReturn(const MustReturn&) = delete;
  MustReturn& operator=(const MustReturn&) = delete;
};

}  // namespace fulgur
