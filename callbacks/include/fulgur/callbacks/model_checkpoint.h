#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/contracts/interval_trigger.h"
#include "fulgur/core/options/monitor_mode.h"

namespace fulgur {

namespace detail {
class CheckpointRanking;
}

/// Decides when checkpoints are written, what they are called and which are kept. The Trainer owns the files.
class FULGUR_API ModelCheckpoint final : public Callback {
 public:
  struct FULGUR_API Options {
    std::optional<std::filesystem::path> dirpath = {};
    std::optional<std::string> filename = {};
    std::optional<std::string> monitor = {};
    MonitorMode mode = MonitorMode::min;
    bool verbose = false;
    bool save_last = true;
    int64_t save_top_k = 1;
    bool save_weights_only = false;
    bool auto_insert_metric_name = true;
    std::optional<int64_t> every_n_train_steps = {};
    std::optional<Interval> train_time_interval = {};
    std::optional<int64_t> every_n_epochs = {};
    std::optional<Interval> every = {};
    std::optional<bool> save_on_train_epoch_end = {};
    bool save_on_exception = false;
    void fields(Fields& f);
  };

  /// Throws a ConfigError for options that exclude each other, naming both.
  explicit ModelCheckpoint(Options options);
  ~ModelCheckpoint() override;

  std::string state_key() const override;
  Phase phase() const override { return Phase::checkpoint; }
  std::vector<std::string> monitored_metrics() const override;
  bool saves_on_exception() const override { return options_.save_on_exception; }
  std::optional<std::string> required_metric() const override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

  void setup(RunContext& run, TrainerFn fn) override;
  void on_fit_start(RunContext& run) override;
  /// Throws a ConfigError if the run cannot measure `every`.
  void on_train_start(RunContext& run) override;
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) override;
  void on_train_epoch_end(RunContext& run) override;
  void on_validation_end(RunContext& run) override;
  void on_train_end(RunContext& run) override;
  /// The Trainer itself writes a checkpoint on a signal; this requests one for other failures.
  void on_exception(RunContext& run, const std::exception& error) override;
  void on_checkpoint_published(RunContext& run, const CheckpointInfo& info) override;
  void on_checkpoint_failed(RunContext& run, const CheckpointInfo& info, const std::exception& error) override;

  /// Score of the best checkpoint so far; nullopt before the first, or without a monitor.
  std::optional<double> best_score() const;

 private:
  bool may_save(RunContext& run) const;
  bool enabled(RunContext& run) const;
  bool epoch_due(RunContext& run) const;
  bool saves_at_train_epoch_end(RunContext& run) const;
  bool counts_epochs() const { return trigger_ && trigger_->every().unit == Interval::Unit::epochs; }
  void interval_passed(RunContext& run);
  std::optional<double> current_score(RunContext& run);
  void save(RunContext& run);
  [[noreturn]] void refuse_monitor(RunContext& run) const;
  std::filesystem::path name_for(RunContext& run);

  Options options_;
  std::unique_ptr<detail::CheckpointRanking> ranking_;
  std::filesystem::path folder_;
  int64_t saved_step_ = -1;
  int64_t seen_step_ = -1;
  int64_t batches_at_start_ = -1;           // over the run; -1 before training begins
  std::optional<IntervalTrigger> trigger_;  // set with `every` or `train_time_interval`
  std::optional<double> resumed_at_;        // what the trigger had reached in the checkpoint
  bool waits_for_validation_ = false;
  bool said_that_it_waits_ = false;
  bool warned_ = false;
};

}  // namespace fulgur
