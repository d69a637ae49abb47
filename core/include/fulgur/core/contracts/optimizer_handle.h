#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fulgur/core/contracts/optimizer.h"

namespace fulgur {

/// How a backward runs.
struct BackwardOptions {
  bool retain_graph = false;        ///< keeps the graph for another backward
  bool create_graph = false;        ///< builds a graph of the gradients (higher-order derivatives)
  std::vector<Tensor> inputs = {};  ///< if not empty, only these leaves get gradients
};

/// An optimizer as a run drives it: its step goes through the run's hooks, precision and strategy. Created by the
/// Trainer; a module with manual optimization gets it from `optimizers(i)`. Used by the run's thread.
class FULGUR_API OptimizerHandle {
 public:
  /// Steps `optimizer` through the run; `closure` is empty except for optimizers that need one.
  using Stepper = std::function<void(OptimizerHandle&, const Closure& closure)>;
  OptimizerHandle(std::shared_ptr<Optimizer> optimizer, Stepper stepper);
  OptimizerHandle(const OptimizerHandle&) = delete;
  OptimizerHandle& operator=(const OptimizerHandle&) = delete;

  Optimizer& optimizer() { return *optimizer_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  /// Counts a step that was not made by `step` (a recorded one).
  void count_step() { ++steps_; }
  std::vector<ParamGroup>& groups() { return optimizer_->groups(); }
  /// Makes one step, with its hooks. Throws an Error outside the run's steps.
  void step(const Closure& closure = {});
  /// Sets the gradients of only this optimizer's parameters to undefined.
  void zero_grad() { optimizer_->zero_grad(); }
  /// All parameters of this optimizer.
  std::vector<Tensor> parameters() const;
  /// Steps that this optimizer made in the run; `global_step` counts training steps.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  std::shared_ptr<Optimizer> optimizer_;
  Stepper stepper_;
  int64_t steps_ = 0;
};

/// While alive, parameters that do not belong to the toggled optimizer do not require gradients; created by
/// `LightningModule::toggled`.
class FULGUR_API ToggledOptimizer {
 public:
  ToggledOptimizer(OptimizerHandle& optimizer, const std::vector<OptimizerHandle*>& all);
  ~ToggledOptimizer();
  ToggledOptimizer(const ToggledOptimizer&) = delete;
  ToggledOptimizer& operator=(const ToggledOptimizer&) = delete;

 private:
  std::vector<Tensor> frozen_;
};

}  // namespace fulgur
