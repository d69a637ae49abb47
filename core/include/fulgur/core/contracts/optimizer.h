#pragma once

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/options/options.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// Parameters that share hyper-parameters.
struct ParamGroup {
  std::string name;            ///< shown by LearningRateMonitor; may be empty
  std::vector<Tensor> params;  ///< the tensors that the optimizer updates
  /// Dotted names, one per parameter, relative to the module that the group was made from (`trainable_groups`).
  std::vector<std::string> names;
  std::vector<Tensor> module_params = {};  ///< the module's own parameters if `params` are copies of them; else empty
  /// The module's parameters, whose gradients backward computes.
  const std::vector<Tensor>& of_module() const { return module_params.empty() ? params : module_params; }
  double lr = 0;                            ///< current learning rate
  double initial_lr = 0;                    ///< before any schedule
  std::optional<double> weight_decay = {};  ///< overrides the optimizer's
};

/// Recomputes the loss and its gradients; for optimizers that evaluate it several times in a step (LBFGS).
using Closure = std::function<Tensor()>;

/// An optimizer: hyper-parameters come from its options; parameters are attached by the Trainer, or by the user in
/// `configure_optimizers`. Used by one thread.
class FULGUR_API Optimizer : public Stateful {
 public:
  static constexpr const char* kRegistryKind = "optimizer";

  /// Takes the parameters. Throws a ConfigError if there are none, if one appears twice, or for a learning rate that is
  /// negative or not finite.
  void attach(std::vector<ParamGroup> groups);
  bool attached() const { return !groups_.empty(); }
  /// From now on steps `copy_of(name, parameter)` in place of each parameter; the caller copies gradients to the copies
  /// and values back. Call after `attach`, before any step.
  void step_copies(const std::function<Tensor(const std::string&, const Tensor&)>& copy_of);
  std::vector<ParamGroup>& groups() { return groups_; }
  const std::vector<ParamGroup>& groups() const { return groups_; }
  /// Learning rate from the options, for groups that do not set one.
  virtual double default_lr() const = 0;
  /// Class name, for logs (`AdamW`).
  virtual std::string name() const = 0;
  /// What a momentum schedule changes: the momentum, or the first beta; nullopt if there is none.
  virtual std::optional<double> momentum() const { return std::nullopt; }
  /// Sets it for all groups. Throws a ConfigError if the optimizer has none.
  virtual void set_momentum(double momentum);

  /// Weight decay of a group; nullopt if the optimizer has none.
  virtual std::optional<double> weight_decay(const ParamGroup& group) const { return group.weight_decay; }

  /// One step on the gradients; parameters without a gradient are unchanged. If the value of `found_inf` (a
  /// float32 scalar on any device) is not 0, the step is skipped; the device decides this.
  virtual void step(const std::optional<Tensor>& found_inf = std::nullopt) = 0;
  /// Whether `keep_rates_on_device` has an effect.
  virtual bool can_keep_rates_on_device() const { return false; }
  /// From now on each step reads the learning rates from the parameters' device, so that a recorded step can be
  /// launched again with other rates. A step that is not being recorded first calls `upload_rates` itself.
  virtual void keep_rates_on_device() {}
  /// Puts the current rates on the device, before a recorded step is launched. Does not wait for the device.
  virtual void upload_rates() {}
  /// Throws a ConfigError that names the group if a learning rate is negative or not finite; `steps` are those that
  /// this optimizer has made, for the message.
  void check_rates(std::optional<int64_t> steps = std::nullopt) const;
  /// Multiplies the learning rates of all groups, current and initial.
  void scale_lr(double factor);
  /// Sets the gradients of these parameters, and of the module's parameters that they are copies of, to undefined.
  void zero_grad();
  /// True if the optimizer evaluates the loss several times in a step; then `step_closure` is called instead of `step`.
  virtual bool needs_closure() const { return false; }
  /// One step that calls `closure`; only for optimizers that need one. Returns the loss of the first evaluation.
  virtual Tensor step_closure(const Closure& closure);
  /// Bytes of state once every parameter has had a gradient; nullopt if unknown.
  virtual std::optional<int64_t> full_state_bytes() const { return std::nullopt; }
  /// Current gradients over all groups, without undefined ones.
  std::vector<Tensor> gradients() const;

  /// Attached parameters as `state[name]`, hyper-parameters as `groups`.
  StateTree state() const override;
  /// Throws a CheckpointError that lists every parameter that is missing, unexpected, of another shape or in another
  /// group.
  void load_state(const StateTree& state) override;

 protected:
  /// State of one parameter (`exp_avg`, `step`, …), named as Python does; empty before its first step.
  virtual StateTree parameter_state(const Tensor& parameter) const = 0;
  virtual void load_parameter_state(const Tensor& parameter, const StateTree& state) = 0;
  /// Throws a CheckpointError if `state` belongs to another kind of optimizer or does not fit the parameter.
  virtual void check_parameter_state(const std::string& name, const Tensor& parameter,
                                     const StateTree& state) const = 0;
  /// Transforms the groups passed to `attach`; an optimizer whose options name parameters splits them here.
  virtual std::vector<ParamGroup> arrange(std::vector<ParamGroup> groups) { return groups; }
  /// Called at the end of `attach`.
  virtual void on_attached() {}

 private:
  std::vector<ParamGroup> groups_;
};

enum class ScheduleInterval { epoch, step };
constexpr auto enum_names(ScheduleInterval) {
  return std::to_array<EnumName<ScheduleInterval>>(
      {{ScheduleInterval::epoch, "epoch"}, {ScheduleInterval::step, "step"}});
}

/// The length of a run as far as it is known before its first step; a schedule uses it to resolve lengths in its
/// options.
struct FULGUR_API RunLength {
  std::optional<int64_t> epochs;  ///< of the whole run
  std::optional<int64_t> steps;   ///< optimizer steps of the whole run
  std::optional<double> steps_per_epoch;
  std::optional<double> samples_per_step;  ///< of this rank, times the world size
  std::optional<int64_t> max_steps = {};   ///< a limit of `steps` that does not depend on the data
  bool operator==(const RunLength& other) const = default;
};

/// A learning-rate schedule over the groups of one optimizer.
///
/// Its lengths in samples, epochs or parts of the run are converted to steps once, for the first part of the run. If
/// the run resumes with a different number of samples per step (other ranks, accumulation or batch size), these lengths
/// stay, and each later step counts as many steps of the first part as its samples filled there: the rate is
/// continuous, and follows the samples that are done. (If `max_steps` ends the run, the pace of a schedule over the
/// whole run makes it end there. The pace of a schedule with lengths in epochs, or in parts of a run of epochs, makes
/// it end with the last epoch: the last step of an epoch may have fewer samples than the others, and epochs may have a
/// different number of samples.) A schedule whose lengths are all numbers of steps counts steps.
class FULGUR_API LrScheduler : public Stateful {
 public:
  static constexpr const char* kRegistryKind = "lr_scheduler";

  /// Stores the optimizer, which must outlive this, and sets the rates of step 0. This, `step` and `load_state` throw a
  /// ConfigError that names the schedule, the step and the value for a rate that is negative or not finite.
  void attach(Optimizer& optimizer);
  Optimizer& optimizer() const;
  /// One step of the schedule; `metric` is the monitored value, for a schedule that needs one.
  void step(std::optional<double> metric = std::nullopt);
  /// How many steps of the run's first part a step counts as; it differs from 1 only after a resume with other batches.
  double pace() const { return pace_; }
  /// Called by the Trainer after `load_state` if the run was saved inside a window of accumulation: the step that ends
  /// it counts like the steps before it.
  void resume_in_window() { first_pace_ = saved_pace_; }
  virtual bool wants_metric() const { return false; }
  /// Called by the Trainer before `attach`: the length of the run, and how often the schedule steps.
  void set_run_length(const RunLength& length, ScheduleInterval interval, int64_t frequency);

  /// The rate of a group after `steps` steps of the run's first part: a pure function if possible.
  virtual double lr_at(int64_t steps, double initial_lr) const = 0;
  /// Momentum of the optimizer after `steps` steps; nullopt if the schedule does not change it.
  virtual std::optional<double> momentum_at(int64_t steps) const;
  /// Receives the metric for the step after `steps` steps, before `lr_at`.
  virtual void observe(int64_t steps, std::optional<double> metric);
  /// The schedules this one is composed of, in the order of its options.
  virtual std::vector<std::shared_ptr<LrScheduler>> parts() const { return {}; }
  /// Multiplies the rates set in the options, such as `max_lr`; called before `attach`. Default: those of the parts.
  virtual void scale_rates(double factor);
  /// Options that were `auto` (`total_steps`) and the steps they resolved to, once attached.
  const std::map<std::string, int64_t, std::less<>>& decided() const { return decided_; }

  StateTree state() const override;
  void load_state(const StateTree& state) override;

 protected:
  /// Called by `attach` before the first rates are set, once the length of the run is known.
  virtual void on_attach(const Optimizer& optimizer);
  /// For a schedule composed of others: `part` counts as this one does, and its `auto` is `steps` steps (nullopt:
  /// unknown).
  void adopt(LrScheduler& part, const Optimizer& optimizer, std::optional<int64_t> steps) const;
  /// Steps of this schedule in the whole run, or in its part of another schedule; nullopt if unknown.
  std::optional<int64_t> known_steps() const;
  /// A length from the options in steps of this schedule: a count as is, an interval converted by the length of the
  /// run. Throws a ConfigError that names `option` (`StepLR.step_size`) if the run's length is unknown.
  int64_t steps_of(const Length& length, std::string_view option) const;
  /// `known_steps()`; throws the same error if unknown.
  int64_t total_steps(std::string_view option) const;

 private:
  void apply();
  /// Steps of the run's first part that are done.
  double exact_position() const;
  int64_t position() const;
  /// Whether `flag` is set in this schedule or in one of its parts.
  bool any(bool LrScheduler::*flag) const;
  /// How many steps of `plan`, the run's first part, each step counts as after a resume with other batches or epochs.
  /// `before`: the part of the run before this one.
  double pace_of(const RunLength& plan, const RunLength& before) const;
  /// Keeps the lengths of `plan`. `before`: the part of the run before this one.
  void keep_plan(const RunLength& plan, const RunLength& before);
  Optimizer* optimizer_ = nullptr;
  int64_t steps_ = 0;
  RunLength part_;                                     // of the run, since the resume
  RunLength run_length_;                               // of the run's first part, but with the limits of this one
  double pace_ = 1, first_pace_ = 1, saved_pace_ = 1;  // since the resume, of the first step after it, before it
  double resumed_position_ = 0;                        // `exact_position` at the last resume
  int64_t resumed_steps_ = 0;                          // and `steps_`
  mutable bool depends_on_run_ = false;                // a length depends on the run's
  mutable bool covers_run_ = false;                    // and is a part of it
  mutable bool counts_epochs_ = false;                 // or a number of its epochs
  ScheduleInterval interval_ = ScheduleInterval::epoch;
  int64_t frequency_ = 1;
  bool is_part_ = false;
  std::optional<int64_t> part_steps_;
  mutable std::map<std::string, int64_t, std::less<>> decided_;
};

/// A scheduler and when it steps (Lightning's lr_scheduler config).
struct SchedulerConfig {
  std::shared_ptr<LrScheduler> scheduler;
  ScheduleInterval interval = ScheduleInterval::epoch;
  int64_t frequency = 1;                    ///< every n epochs or steps, counted over the run
  std::optional<std::string> monitor = {};  ///< metric passed to a scheduler that needs one
  bool strict = true;                       ///< a missing metric is an error, else a warning
  std::string name = {};                    ///< label in logs; empty: `lr-<optimizer>`
};

struct PlannedOptimizer {
  std::shared_ptr<Optimizer> optimizer;
  std::optional<SchedulerConfig> scheduler;
};

/// What `configure_optimizers` returns, in all of Lightning's forms:
///
///     return {};                                        // the config's optimizer and scheduler
///     return fulgur::OptimizerPlan::none();             // none: the module updates itself (manual optimization)
///     return optimizer;                                 // one
///     return {optimizer, scheduler};                    // with a schedule that steps each epoch
///     return {optimizer, SchedulerConfig{…}};           // with interval, frequency, monitor, strict, name
///     return OptimizerPlan::several({{a, {}}, {b, SchedulerConfig{…}}});   // several; manual optimization only
struct FULGUR_API OptimizerPlan {
  std::vector<PlannedOptimizer> optimizers;
  bool without_optimizer = false;
  OptimizerPlan() = default;
  static OptimizerPlan none() {
    OptimizerPlan plan;
    plan.without_optimizer = true;
    return plan;
  }
  static OptimizerPlan several(std::vector<PlannedOptimizer> planned) { return OptimizerPlan(std::move(planned)); }
  template <std::derived_from<Optimizer> O>
  OptimizerPlan(std::shared_ptr<O> optimizer) : optimizers{{std::move(optimizer), std::nullopt}} {}
  template <std::derived_from<Optimizer> O>
  OptimizerPlan(std::shared_ptr<O> optimizer, SchedulerConfig scheduler)
      : optimizers{{std::move(optimizer), std::move(scheduler)}} {}
  template <std::derived_from<Optimizer> O, std::derived_from<LrScheduler> S>
  OptimizerPlan(std::shared_ptr<O> optimizer, std::shared_ptr<S> scheduler)
      : optimizers{{std::move(optimizer), SchedulerConfig{.scheduler = std::move(scheduler)}}} {}
  OptimizerPlan(std::vector<PlannedOptimizer> planned) : optimizers(std::move(planned)) {}
  /// True if the config decides.
  bool empty() const { return optimizers.empty() && !without_optimizer; }
};

}  // namespace fulgur
