#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "fulgur/core/contracts/logger.h"

namespace fulgur::detail {

/// A logger that may block, on its own thread: what is logged waits in a queue, and the run never waits for it. An
/// entry that the logger cannot take is tried again, with pauses that double, before later entries. What does not fit
/// into the queue is lost, and counted. `finalize` waits for a limited time, and then reports what is lost. While a
/// thread that it abandoned has not ended, other objects of this class do not call the logger, and drop what is logged.
class LoggerThread final : public Logger {
 public:
  struct Limits {
    size_t entries = 10000;           ///< that wait
    size_t bytes = size_t{64} << 20;  ///< of these
    double first_pause_s = 1, longest_pause_s = 60;
    double end_wait_s = 30;         ///< how long `finalize` waits for the queue
    double failing_end_wait_s = 5;  ///< the same while the logger fails
    double first_wait_s = 5;        ///< how long the first `state` waits for `start`, unless the logger fails
    double last_call_s = 20;        ///< how long a call may then still take, before `Logger::must_return` is true
    double return_s = 3;            ///< how long it may take to return; its thread is abandoned after that
  };
  LoggerThread(std::shared_ptr<Logger> logger, const Limits& limits);
  explicit LoggerThread(std::shared_ptr<Logger> logger) : LoggerThread(std::move(logger), Limits()) {}
  /// Without `finalize`, drops what waits.
  ~LoggerThread() override;

  std::optional<std::string> run_name() const override { return logger_->run_name(); }
  std::optional<int64_t> run_version() const override { return logger_->run_version(); }
  std::string state_key() const override { return logger_->state_key(); }
  bool may_block() const override { return true; }
  /// The newest state that is known. Only the first call waits, so that the first checkpoint of a short run has a
  /// state.
  StateTree state() override;
  /// Until the logger has started, this is the newest state: checkpoints of a resumed run keep it.
  void load_state(const StateTree& state) override;
  void start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step) override;
  void log_hyperparams(const ConfigNode& hparams) override;
  void log_metrics(const Metrics& metrics, int64_t step) override;
  void log_media(const MediaRecord& record, int64_t step) override;
  void log_artifact(const std::filesystem::path& path) override;
  void after_save_checkpoint(const CheckpointInfo& info) override;
  /// Waits until nothing waits, for at most `end_wait_s`.
  void flush() override;
  /// Begins the end of the run without waiting for it, so that several loggers end at the same time. If `hurries`,
  /// `finalize` returns within 5 s.
  void begin_end(RunStatus status, bool hurries) noexcept;
  void finalize(RunStatus status) noexcept override;
  /// What `finalize` has reported as lost; empty if nothing was lost.
  std::string losses() const;

 private:
  struct Entry;
  struct Shared;
  void add(Entry entry);
  /// Whether another thread of the logger, abandoned by an earlier run, may still call it.
  bool is_blocked();

  std::shared_ptr<Logger> logger_;
  std::shared_ptr<Shared> shared_;  // also the thread's, which may outlive this object
};

}  // namespace fulgur::detail
