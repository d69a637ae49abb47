#pragma once

#include "fulgur/core/optimizer_handle.h"

namespace fulgur::detail {

/// What a module asks of the training step under way: TrainingStep.
class StepActions {
 public:
  virtual ~StepActions() = default;
  /// `RunContext::manual_backward`, in training_step.
  virtual void manual_backward(const Tensor& loss, const BackwardOptions& options) = 0;
  /// One step of `optimizer`, in training_step of manual optimization or in the optimizer_step hook.
  virtual void step_optimizer(Optimizer& optimizer, const Closure& closure) = 0;
};

/// The training step under way.
struct StepState {
  /// What a module calls in its training_step, or in optimizer_step. Elsewhere they throw an Error that says so.
  void manual_backward(const Tensor& loss, const BackwardOptions& options);
  void step_optimizer(Optimizer& optimizer, const Closure& closure);

  bool manual = false;             ///< manual optimization
  bool in_training_step = false;   ///< where manual backward and step may be called
  bool manual_sync = true;         ///< manual_backward exchanges gradients between ranks
  StepActions* actions = nullptr;  ///< while the run trains
  bool tokens_unknown = false;     ///< num_tokens gave nothing: the module's class was not known before
  bool stepped = false;            ///< an optimizer made a step in this batch
  bool adds_gradients = false;     ///< this batch's backward has begun
  bool muted = false;              ///< log() does nothing: a closure is evaluated again
};

}  // namespace fulgur::detail
