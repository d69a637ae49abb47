#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "fulgur/core/optimizer.h"

namespace fulgur {

/// How a backward runs.
struct BackwardOptions {
  bool retain_graph = false;        ///< the graph is used again
  bool create_graph = false;        ///< gradients of gradients
  std::vector<Tensor> inputs = {};  ///< only these leaves get gradients; empty: all
};

/// An optimizer as a run drives it: its step goes through the run's hooks, precision and strategy. Made by the Trainer;
/// a module with manual optimization gets it from `optimizers(i)`. Used by the thread of the run.
class FULGUR_API OptimizerHandle {
 public:
  /// Steps `optimizer` through the run; `closure` is empty but for optimizers that need one.
  using Stepper = std::function<void(OptimizerHandle&, const Closure& closure)>;
  OptimizerHandle(std::shared_ptr<Optimizer> optimizer, Stepper stepper);
  OptimizerHandle(const OptimizerHandle&) = delete;
  OptimizerHandle& operator=(const OptimizerHandle&) = delete;

  Optimizer& optimizer() { return *optimizer_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  /// A step that was made otherwise than by `step` (a recorded one).
  void count_step() { ++steps_; }
  std::vector<ParamGroup>& groups() { return optimizer_->groups(); }
  /// One step, with the hooks that belong to it. Throws an Error outside of the run's steps.
  void step(const Closure& closure = {});
  /// Sets the gradients of this optimizer's parameters to none, and of no others.
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

/// While it lives, parameters that are not of the toggled optimizer need no gradient; made by
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
