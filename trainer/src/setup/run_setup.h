#pragma once

#include <c10/core/DeviceGuard.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "checkpointing/checkpoint_table.h"
#include "context/run.h"
#include "fulgur/checkpoint/run_lock.h"
#include "setup/startup.h"

namespace fulgur::detail {

/// The `trainer:` section that these options come from.
ConfigNode options_node(TrainerOptions options);

struct SharedData;

/// What an earlier fit of the same Trainer left, for `last` and `best`.
struct LatestCheckpoints {
  std::optional<std::filesystem::path> last, best;
};

/// Everything that happens around the loops of one run, in the order of docs/architecture.md.
class RunSetup {
 public:
  RunSetup(const TrainerOptions& options, const TrainerComponents& components, TrainerFn fn)
      : settings_(options), run_(std::make_unique<Run>(options, components, fn)), fn_(fn) {}

  RunState& state() { return run_->state; }
  Services& services() { return run_->services; }
  /// Everything is prepared: the loops begin.
  void start();

  /// Hardware, callbacks, data, weights, optimizers, run folder, restored state: everything before the loops.
  void prepare(std::shared_ptr<LightningModule> module, DataSource data, const CheckpointChoice& choice,
               const LatestCheckpoints& latest);
  /// The checkpoint that the run started from.
  const std::optional<std::filesystem::path>& checkpoint() const { return checkpoint_; }
  /// Closes loggers and tears down, once; failures are only reported.
  void finish(RunStatus status) noexcept;
  /// First half of the handling of every exception and signal: notifies callbacks and the data module, and writes
  /// checkpoints that they request.
  void on_exception(const std::exception& error) noexcept;

 private:
  void choose_hardware();
  void check_options() const;
  void choose_checkpoint(const CheckpointChoice& choice, const LatestCheckpoints& latest);
  void find_checkpoint_for(const CheckpointChoice& choice, const LatestCheckpoints& latest);
  void prepare_data();
  std::vector<std::optional<int64_t>> agreed_lengths(RunningStage stage, std::vector<std::optional<int64_t>> lengths,
                                                     const std::vector<SharedData>& shared);
  void create_run_folder();
  /// What the checkpoint restores, and where it comes from.
  Restoring restoring();
  /// Loads what belongs to this phase, if there is a checkpoint.
  void load_from_checkpoint(LoadPhase phase);
  void make_replicas();
  void make_callbacks();
  void make_loggers();
  void set_up_data();
  void require_step() const;
  bool reads_ahead() const;
  void set_up_stage(RunningStage stage, const BatchLimit& limit, std::string_view option);
  /// The option that the user has set: overfit_batches stands for two.
  const char* limit_name(const char* option) const;
  void save_config();
  void print_start();

  ProcessSettings settings_;
  std::unique_ptr<Run> run_;
  TrainerFn fn_;
  ChosenDevices devices_;
  std::optional<c10::DeviceGuard> current_device_;  ///< the strategy's, until the end of the run
  int64_t threads_ = 1;
  std::vector<std::shared_ptr<Logger>> started_loggers_;
  std::optional<std::filesystem::path> checkpoint_;
  std::optional<CheckpointContent> content_;  ///< of it, until it is restored
  /// The run folder in which the checkpoint is, or a link to it; where a fit with a version that has no checkpoint yet
  /// begins again; and the one that this run continues in.
  std::optional<std::filesystem::path> checkpoint_run_dir_, restarted_run_dir_, resumed_run_dir_;
  ResumedCheckpoint resumed_;
  bool resumes_unfinished_ = false;  // the run in resumed_run_dir_; on rank 0
  std::optional<RunLock> lock_;
  bool finished_ = false;
  bool set_up_ = false;
};

}  // namespace fulgur::detail
