#pragma once

#include <string>

#include "fulgur/core/export.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

class RunContext;

/// What a StepJudge decides about a step of the optimizer.
enum class StepVerdict {
  good,      ///< the step is made, and training progresses
  unknown,   ///< the step is made; nothing is known of its loss
  skip,      ///< the step is not made; weights and buffers stay as they were before its accumulation window
  roll_back  ///< weights, optimizers and schedules return to the last checkpoint; if there is none, as `skip`
};

/// Decides by the loss, before a step of the optimizer, whether the step is made: a callback that implements it passes
/// itself to `RunContext::judge_steps`. Only for automatic optimization and optimizers that need no closure. All ranks
/// must decide alike.
class FULGUR_API StepJudge {
 public:
  virtual ~StepJudge();
  /// The loss of a batch as `training_step` returned it (neither divided nor scaled), detached, before its backward.
  /// It is that of this rank.
  virtual void see_loss(RunContext& run, const Tensor& loss) = 0;
  /// Called before the step of the window to which the losses seen since the last call belong. The gradients are
  /// clipped by then.
  virtual StepVerdict judge_step(RunContext& run) = 0;
  /// The reason for the last `skip` or `roll_back`, such as `the loss is 12`.
  virtual std::string finding() const = 0;
  /// The run has returned to a checkpoint with this state, and the open window is discarded.
  virtual void on_rollback(RunContext& run, const StateTree& checkpoint) = 0;
};

}  // namespace fulgur
