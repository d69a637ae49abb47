#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/contracts/interval_trigger.h"
#include "fulgur/core/contracts/whole_parameters.h"
#include "fulgur/core/options/enum_names.h"

namespace fulgur {

namespace detail {
class UpdateCount;
class WeightAverage;
}  // namespace detail

/// Exponential moving average, or the equal average of stochastic weight averaging (Izmailov et al., 2018).
enum class AveragingKind { ema, swa };
constexpr auto enum_names(AveragingKind) {
  return std::to_array<EnumName<AveragingKind>>({{AveragingKind::ema, "ema"}, {AveragingKind::swa, "swa"}});
}

/// How the learning rate of stochastic weight averaging is reached.
enum class SwaAnnealing { cos, linear };
constexpr auto enum_names(SwaAnnealing) {
  return std::to_array<EnumName<SwaAnnealing>>({{SwaAnnealing::cos, "cos"}, {SwaAnnealing::linear, "linear"}});
}

/// Averages the weights of a fit, and evaluates with the average: in the validations of a fit, and in `validate`,
/// `test` and `predict` of a checkpoint. Checkpoints hold the weights that are trained, and the average in the state of
/// this callback. The first average is a copy of the weights; then, as in torch.optim.swa_utils, an update after an
/// optimizer step moves it towards the weights by `1 - decay` (ema) or by `1 / (n + 1)` after n updates (swa). Updates
/// are made on the devices of the parameters, do not wait for them, and are the same on all ranks. Averages of
/// half-precision weights are float32.
class FULGUR_API WeightAveraging final : public Callback, public FollowsWeights {
 public:
  struct FULGUR_API Options {
    AveragingKind kind = AveragingKind::ema;
    std::optional<double> decay = {};  ///< 0.999 if there is no half-life
    std::optional<Interval> half_life = {};
    std::optional<Interval> start = {};
    std::optional<Interval> every = {};  ///< one step (ema) or one epoch (swa)
    bool use_buffers = true;
    std::vector<double> swa_lrs = {};  ///< one for all parameter groups, or one for each
    std::optional<int64_t> annealing_epochs = {};
    std::optional<SwaAnnealing> annealing_strategy = {};
    std::optional<bool> update_bn = {};  ///< true for swa
    bool copy_at_end = true;
    void fields(Fields& f);
  };

  /// Throws a ConfigError for options that are out of range, exclude each other or belong to the other kind.
  explicit WeightAveraging(Options options);
  ~WeightAveraging() override;

  StateTree state() const override;
  /// Throws a CheckpointError if the average does not fit the module of the current run, or is of the other kind and
  /// the run is a fit.
  void load_state(const StateTree& state) override;
  void roll_back(RunContext& run, const StateTree& state) override;

  /// Forgets the average of an earlier run.
  void setup(RunContext& run, TrainerFn fn) override;
  void teardown(RunContext& run, TrainerFn fn) override;
  void on_exception(RunContext& run, const std::exception& error) override;
  bool saves_on_exception() const override { return false; }

  /// Throws a ConfigError if the run cannot measure an interval, if `swa_lrs` fits no parameter groups, and if batch
  /// norms cannot be updated.
  void on_train_start(RunContext& run) override;
  void on_train_epoch_start(RunContext& run) override;
  void on_train_epoch_end(RunContext& run) override;
  void on_train_batch_start(RunContext& run, const Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) override;
  void on_train_end(RunContext& run) override;
  void on_fit_end(RunContext& run) override;

  void on_validation_start(RunContext& run) override;
  void on_validation_end(RunContext& run) override;
  void on_test_start(RunContext& run) override;
  void on_test_end(RunContext& run) override;
  void on_predict_start(RunContext& run) override;
  void on_predict_end(RunContext& run) override;

  /// A weight-only checkpoint, which has no states of callbacks, gets the average too.
  void on_save_checkpoint(RunContext& run, StateTree& checkpoint) override;

  /// Updates so far; the first one is a copy of the weights. Waits for the device if it decides which steps are
  /// skipped.
  int64_t n_averaged() const;
  /// The averaged parameters by name, which further updates change in place; empty before the first update.
  StateTree averaged_parameters() const;

 private:
  void check_kind() const;
  void check_rates(RunContext& run) const;
  /// Updates the average if the run has made a step since the last update and one is due.
  void update_if_due(RunContext& run);
  double ema_decay(RunContext& run) const;
  void update(RunContext& run);
  /// The same if only the device knows whether there is something to update with: a scalar there, nonzero if so.
  void update_if(RunContext& run, const Tensor& counts);
  /// Whether all steps since the last update were skipped, as far as the host knows; if only the device knows, `counts`
  /// becomes a scalar on the device that is false in this case.
  bool only_skipped_steps(RunContext& run, Tensor& counts);
  /// Counts skipped steps from now on, beside those that a loaded state has.
  void begin_counting_skips(RunContext& run);
  /// Skipped steps since the last update, for a saved state; does not wait.
  StateTree skipped_since_update(RunContext& run) const;
  void load_average(const StateTree& state, int64_t n_averaged);
  bool is_after_start(RunContext& run) const;
  void set_rates(RunContext& run);
  void enter(RunContext& run);
  void leave();
  void request_last_checkpoint(RunContext& run) const;
  void warn_of_short_annealing(RunContext& run) const;

  Options options_;
  IntervalTrigger trigger_;
  std::unique_ptr<detail::WeightAverage> average_;
  std::unique_ptr<WholeParameters> whole_;  ///< while the module has the average
  LightningModule* module_ = nullptr;       ///< of the run, for checks of a state that is loaded
  TrainerFn fn_ = TrainerFn::fit;
  std::unique_ptr<detail::UpdateCount> updates_;
  int64_t updated_at_step_ = 0;
  double updated_at_ = 0;      ///< in the unit of half_life
  std::vector<double> rates_;  ///< of the groups of all optimizers when the swa rates began
  int64_t rates_from_epoch_ = -1;
  bool loaded_ = false, ended_ = false;
  bool rolled_back_ = false;   ///< and no further batch has begun
  RunContext* run_ = nullptr;  ///< of a fit whose training has started
  double skipped_ = 0;         ///< the run's count of skipped steps at the last update, on the host
  Tensor skipped_on_device_;   ///< the same, if the device counts
  StateTree skips_ = 0;        ///< skipped steps since the last update, while `run_` is not set
};

}  // namespace fulgur
