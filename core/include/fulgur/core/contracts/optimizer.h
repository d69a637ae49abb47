#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/lr_scheduler.h"
#include "fulgur/core/options/options.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// Parameters that share hyper-parameters.
struct ParamGroup {
  std::string name;            ///< name that LearningRateMonitor shows; may be empty
  std::vector<Tensor> params;  ///< the tensors that the optimizer updates
  /// Dotted names, one per parameter, relative to the module that the group was made from (`trainable_groups`).
  std::vector<std::string> names;
  std::vector<Tensor> module_params = {};  ///< the module's own parameters if `params` are copies of them; else empty
  bool are_shards = false;                 ///< whether `params` are parts of `module_params`
  /// The module's parameters, whose gradients backward computes.
  const std::vector<Tensor>& of_module() const { return module_params.empty() ? params : module_params; }
  double lr = 0;                            ///< current learning rate
  double initial_lr = 0;                    ///< learning rate before any schedule
  std::optional<double> weight_decay = {};  ///< overrides the optimizer's
};

/// Recomputes the loss and its gradients, for optimizers that evaluate it several times in a step (LBFGS).
using Closure = std::function<Tensor()>;

/// An optimizer. Hyper-parameters come from its options; parameters are attached by the Trainer, or by the user in
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
  /// From now on steps `shard_of(name, parameter)`, a part of each parameter's memory as a vector, which may be empty.
  /// The caller gives the shards their gradients for a step. `gradients` and clipping use those of the parameters, or,
  /// if `sum_over_ranks` is given, those of the shards: other ranks have the other parts. Call after `attach`, only for
  /// an optimizer that `is_elementwise`; states must be loaded again.
  void step_shards(const std::function<Tensor(const std::string&, const Tensor&)>& shard_of,
                   std::function<Tensor(const Tensor&)> sum_over_ranks = {});
  /// Whether `gradients` are this rank's parts of the gradients; then parameters have none once they are exchanged.
  bool gradients_are_shards() const { return static_cast<bool>(sum_over_ranks_); }
  /// What each rank has computed of its `gradients`, combined: the sum over the ranks if they are shards, else `value`.
  /// All ranks must call it.
  Tensor sum_over_shards(const Tensor& value) const { return sum_over_ranks_ ? sum_over_ranks_(value) : value; }
  /// Undoes `step_shards`: steps whole parameters again. The states that shards had are lost.
  void step_whole_parameters();
  /// Whether a step changes each element of a parameter by its own gradient, value and state only.
  virtual bool is_elementwise() const { return false; }
  std::vector<ParamGroup>& groups() { return groups_; }
  const std::vector<ParamGroup>& groups() const { return groups_; }
  /// Learning rate from the options, for groups that do not set one.
  virtual double default_lr() const = 0;
  /// Class name, for logs (`AdamW`).
  virtual std::string name() const = 0;
  /// The value that a momentum schedule changes, which is the momentum or the first beta; nullopt if there is none.
  virtual std::optional<double> momentum() const { return std::nullopt; }
  /// Sets that value for all groups. Throws a ConfigError if the optimizer has none.
  virtual void set_momentum(double momentum);

  /// Weight decay of a group; nullopt if the optimizer has none.
  virtual std::optional<double> weight_decay(const ParamGroup& group) const { return group.weight_decay; }

  /// Makes one step on the gradients; parameters without a gradient are unchanged. If the value of `found_inf` (a
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
  /// Makes one step that calls `closure`, for optimizers that need one. Returns the loss of the first evaluation.
  virtual Tensor step_closure(const Closure& closure);
  /// Bytes of state once every parameter has had a gradient; nullopt if unknown.
  virtual std::optional<int64_t> full_state_bytes() const { return std::nullopt; }
  /// Current gradients over all groups, without undefined ones: those of copies; if shards are stepped, those of the
  /// parameters, or of the shards if `gradients_are_shards`.
  std::vector<Tensor> gradients() const;

  /// The state of each attached parameter is at `state[name]`, and the hyper-parameters are at `groups`.
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
  std::function<Tensor(const Tensor&)> sum_over_ranks_;
};

/// Joint 2-norm of the optimizer's gradients (`grad_norm` of a list of gradients), of all ranks if they are shards;
/// then all ranks must call it.
FULGUR_API Tensor grad_norm(const Optimizer& optimizer);
/// Scales the optimizer's gradients so that this norm is at most `max_norm`, and returns the norm before.
FULGUR_API Tensor clip_grad_norm(const Optimizer& optimizer, double max_norm);

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
