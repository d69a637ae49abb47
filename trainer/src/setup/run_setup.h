#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "context/run.h"
#include "fulgur/nn/inference_weights.h"
#include "setup/hardware.h"
#include "setup/process_settings.h"
#include "setup/resume_plan.h"

namespace fulgur::detail {

/// The `trainer:` section that these options come from.

/// Everything that happens around the loops of one run, in the order of docs/architecture.md.
class RunSetup {
 public:
  RunSetup(const TrainerOptions& options, const TrainerComponents& components, TrainerFn fn)
      : settings_(options),
        owned_(std::make_unique<Run>(options, components, fn)),
        run_(owned_->state),
        services_(owned_->services) {}

  RunState& state() { return run_; }
  Services& services() { return services_; }
  /// Everything is prepared: the loops begin.
  void start();

  /// Hardware, callbacks, data, weights, optimizers, run folder, restored state: everything before the loops.
  void prepare(std::shared_ptr<LightningModule> module, DataSource data, const CheckpointChoice& choice,
               const LatestCheckpoints& latest);
  /// The checkpoint that the run started from.
  const std::optional<std::filesystem::path>& checkpoint() const { return resume_->checkpoint; }
  /// Closes loggers and tears down, once; failures are only reported.
  void finish(RunStatus status) noexcept;
  /// After `finish`: for each logger that has lost something, what it has reported.
  std::vector<std::string> logger_losses() const;
  /// First half of the handling of every exception and signal: notifies callbacks and the data module, and writes
  /// checkpoints that they request.
  void on_exception(const std::exception& error) noexcept;

 private:
  void check_options() const;
  // The steps of the preparation, in this order; their results are in the run's state.
  void load_data(ResumePlan& resume);
  void plan_training(ResumePlan& resume);
  void choose_run_folder(ResumePlan& resume);
  void restore(ResumePlan& resume);
  // Changes files of the run, such as the rows after its checkpoint.
  void open_run_folder(ResumePlan& resume);
  void prepare_data();
  void make_replicas();
  void prepare_weights();
  // The resolved config and what else a checkpoint says about the run.
  void describe_run();
  void save_config();
  void print_long_rows();
  void print_start();

  ProcessSettings settings_;
  std::unique_ptr<Run> owned_;
  RunState& run_;
  Services& services_;
  std::optional<Hardware> hardware_;
  std::optional<ResumePlan> resume_;
  std::optional<nn::InferenceWeights> inference_weights_;  ///< of an evaluation on the CPU
  std::vector<std::shared_ptr<Logger>> started_loggers_;
  bool finished_ = false;
  bool set_up_ = false;
  bool owns_folder_ = false;      ///< the files in the run folder are those of this run
  bool made_folder_ = false;      ///< this run has created its folder
  bool discards_folder_ = false;  ///< nothing has begun in it
};

}  // namespace fulgur::detail
