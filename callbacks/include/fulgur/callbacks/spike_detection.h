#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/contracts/step_judge.h"
#include "fulgur/core/options/enum_names.h"

namespace fulgur {

namespace detail {
class LateNumbers;
class SpikeRule;
}  // namespace detail

/// What happens at a spike of the loss.
enum class SpikeAction { warn, skip, rollback, stop };
constexpr auto enum_names(SpikeAction) {
  return std::to_array<EnumName<SpikeAction>>({{SpikeAction::warn, "warn"},
                                               {SpikeAction::skip, "skip"},
                                               {SpikeAction::rollback, "rollback"},
                                               {SpikeAction::stop, "stop"}});
}

/// Detects training losses that are far above the mean of the last steps. The loss of a step is the mean over its
/// accumulation window and all ranks, so all ranks decide alike. Losses that are not finite are left to
/// `trainer.on_nonfinite`.
///
/// `skip` and `rollback` decide before the optimizer's step and read the loss in each step, which waits for the device;
/// they need automatic optimization and an optimizer without a closure, and such steps are not captured. `warn` and
/// `stop` decide after the step; on a GPU five batches later, without a wait.
class FULGUR_API SpikeDetection final : public Callback, private StepJudge {
 public:
  struct FULGUR_API Options {
    SpikeAction action = SpikeAction::warn;
    int64_t window = 10;
    int64_t warmup = 1;
    std::optional<double> atol = {};
    std::optional<double> rtol = 2.0;
    std::optional<double> z = {};
    int64_t patience = 1;
    void fields(Fields& f);
  };

  /// Throws a ConfigError if `atol`, `rtol` and `z` are all unset, or for a number out of range.
  explicit SpikeDetection(Options options);
  ~SpikeDetection() override;

  Phase phase() const override { return Phase::decide; }
  StateTree state() const override;
  void load_state(const StateTree& state) override;

  void setup(RunContext& run, TrainerFn fn) override;
  /// Throws a ConfigError if the run cannot skip steps or roll back.
  void on_train_start(RunContext& run) override;
  void on_train_batch_start(RunContext& run, const Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) override;
  void on_train_epoch_end(RunContext& run) override;
  void on_save_checkpoint(RunContext& run, StateTree& checkpoint) override;
  void on_train_end(RunContext& run) override;

  /// Steps so far whose loss was a spike, also those before the action.
  int64_t spikes() const;

 private:
  bool decides_before_step() const;
  void add_loss(const Tensor& loss);
  /// The loss of the step whose window has ended: the mean over its batches and all ranks, on the device.
  Tensor close_window(RunContext& run);
  /// Takes the loss of a step that was made since the last call; for `warn` and `stop`.
  void end_step(RunContext& run);
  void judge_late(RunContext& run, bool waits);
  void warn_of_no_loss(const RunContext& run) const;
  void report(RunContext& run, const std::string& text);

  // StepJudge
  void see_loss(RunContext& run, const Tensor& loss) override;
  StepVerdict judge_step(RunContext& run) override;
  std::string finding() const override { return finding_; }
  void on_rollback(RunContext& run, const StateTree& checkpoint) override;

  Options options_;
  std::unique_ptr<detail::SpikeRule> rule_;
  std::unique_ptr<detail::LateNumbers> late_;
  Tensor sum_;           // of the losses of the open window, float64 on the device
  int64_t batches_ = 0;  // in that sum
  int64_t steps_ = 0;    // `global_step` after the last batch
  int64_t steps_at_start_ = 0;
  bool saw_loss_ = false;  // since then
  int64_t rank_ = 0, world_size_ = 1;
  std::string finding_;
  bool reported_ = false;  // in this process
};

}  // namespace fulgur
