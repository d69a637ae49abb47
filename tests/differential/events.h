#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fulgur/core/callback.h"

namespace fulgur::test {

/// Asks for stops and saves, ends the process at the configured point, and records what the run has done.
///
/// `folder/seen/LIFE.RANK` has a line for each batch that was trained on: its number in the run, and the samples. LIFE
/// is the number of processes that have worked on the run before. `folder/from/LIFE` has the number of the batch from
/// which that process continued: what its predecessor did after that does not count. `folder/result.RANK.ckpt` is what
/// the run came to. `folder/rates` has a line for each step: the samples that were seen before it, and its rate.
///
/// `clock` and `full` are for the process that makes the run (forked.h).
class DifferentialEvents : public Callback {
 public:
  struct Options {
    std::vector<int64_t> save_at, stop_at;  ///< batches of the run
    int64_t kill_at = -1;                   ///< batch of the run
    std::string kill_place = "batch_end";
    int64_t kill_rank = -1;           ///< all
    std::string kill_by = "SIGKILL";  ///< a signal, or an exception
    bool clock = false;               ///< each batch takes a second of the run's clock
    std::vector<int64_t> full;        ///< the disk is full from one batch of the process to another
    std::string folder;
    void fields(Fields& f);
  };
  explicit DifferentialEvents(Options options) : options_(std::move(options)) {}

  Phase phase() const override { return Phase::decide; }
  StateTree state() const override;
  void load_state(const StateTree& state) override;

  void setup(RunContext& run, TrainerFn fn) override;
  void on_train_start(RunContext& run) override;
  void on_train_batch_start(RunContext& run, const Batch& batch, int64_t batch_idx) override;
  void on_after_backward(RunContext& run) override;
  void on_before_optimizer_step(RunContext& run, Optimizer& optimizer) override;
  void on_before_zero_grad(RunContext& run, Optimizer& optimizer) override;
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) override;
  void on_validation_end(RunContext& run) override;
  void on_train_epoch_end(RunContext& run) override;
  void on_save_checkpoint(RunContext& run, StateTree& checkpoint) override;
  void on_checkpoint_published(RunContext& run, const CheckpointInfo& info) override;
  void on_fit_end(RunContext& run) override;

 private:
  void at(RunContext& run, std::string_view place);
  void note(RunContext& run, const Batch& batch);
  void note_rate(RunContext& run);

  Options options_;
  int64_t life_ = 0, batches_ = 0;
  bool ended_ = false;
};

/// Training batches of this process.
inline int64_t batches_of_process = 0;

}  // namespace fulgur::test
