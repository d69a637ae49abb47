#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fulgur/core/contracts/callback.h"

namespace fulgur::test {

/// Asks for stops and saves, ends the process at the configured point, and records what the run has done.
///
/// `folder/seen/LIFE.RANK` has a line for each batch that was trained on: its number in the run, and the samples. LIFE
/// is the number of processes that have worked on the run before. `folder/from/LIFE` has the number of the batch from
/// which that process continued: what its predecessor did after that does not count. `folder/result.RANK.ckpt` is what
/// the run came to. `folder/published` has the step of the last checkpoint that was published: no process may begin
/// before it. `folder/rates` has a line for each step: the samples that were seen before it, and its rate.
///
/// `clock` and `full` are for the process that makes the run (forked.h). It has none of the hooks inside a step, which
/// would keep steps from being captured.
class DifferentialEvents : public Callback {
 public:
  struct Options {
    std::vector<int64_t> save_at, stop_at;  ///< batches of the run
    int64_t kill_at = -1;                   ///< batch of the run
    std::string kill_place = "batch_end";
    int64_t kill_rank = -1;           ///< all
    std::string kill_by = "SIGKILL";  ///< a signal, or an exception
    bool save_failed = false;         ///< asks for a checkpoint after an exception
    bool clock = false;               ///< each batch takes a second of the run's clock
    std::vector<int64_t> full;        ///< the disk is full from one batch of the process to another
    std::string folder;
    void fields(Fields& f);
  };
  explicit DifferentialEvents(Options options) : options_(std::move(options)) {}

  std::vector<std::string> monitored_metrics() const override { return {"loss"}; }
  Phase phase() const override { return Phase::decide; }
  StateTree state() const override;
  void load_state(const StateTree& state) override;

  void setup(RunContext& run, TrainerFn fn) override;
  void on_fit_start(RunContext& run) override;
  void on_train_start(RunContext& run) override;
  void on_train_epoch_start(RunContext& run) override;
  void on_train_batch_start(RunContext& run, const Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) override;
  void on_validation_batch_end(RunContext& run, const Outputs& outputs, const Batch& batch, int64_t batch_idx,
                               int64_t loader_idx) override;
  void on_validation_end(RunContext& run) override;
  void on_train_epoch_end(RunContext& run) override;
  void on_save_checkpoint(RunContext& run, StateTree& checkpoint) override;
  void on_checkpoint_published(RunContext& run, const CheckpointInfo& info) override;
  void on_exception(RunContext& run, const std::exception& error) override;
  bool saves_on_exception() const override { return options_.save_failed; }
  void on_train_end(RunContext& run) override;
  void on_fit_end(RunContext& run) override;
  void teardown(RunContext& run, TrainerFn fn) override;

 protected:
  void at(RunContext& run, std::string_view place);

 private:
  /// The samples of a batch, to be written if it counts.
  void note(const Batch& batch);
  void write_note(RunContext& run) const;
  void note_rate(RunContext& run);

  Options options_;
  int64_t life_ = 0, batches_ = 0, batches_at_start_ = 0;
  std::string note_;                                                      // of the batch under way
  int64_t epochs_begun_ = 0, epochs_ended_ = 0, validation_batches_ = 0;  // what a resume repeats counts once
  bool trains_ = false, ended_ = false;
};

/// The same, also with places inside a step.
class DifferentialStepEvents : public DifferentialEvents {
 public:
  using DifferentialEvents::DifferentialEvents;
  void on_after_backward(RunContext& run) override { at(run, "after_backward"); }
  void on_before_optimizer_step(RunContext& run, Optimizer&) override { at(run, "before_step"); }
  void on_before_zero_grad(RunContext& run, Optimizer&) override { at(run, "before_zero_grad"); }
};

/// Training batches of this process.
inline int64_t batches_of_process = 0;
/// The run under way in this process, for data that depends on its epoch; null if there is none.
inline const RunContext* run_of_process = nullptr;

}  // namespace fulgur::test
