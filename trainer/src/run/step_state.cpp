#include "run/step_state.h"

#include "fulgur/core/text/errors.h"

namespace fulgur::detail {

void StepState::step_optimizer(Optimizer& optimizer, const Closure& closure) {
  if (!actions_ && !manual)
    throw Error(
        "[trainer.optimizer_step] the module uses automatic optimization: the Trainer steps the optimizer, and a "
        "module may do so only in its optimizer_step hook. Remove step(), or override automatic_optimization() to "
        "return false.");
  if (!actions_)
    throw Error(
        "[trainer.optimizer_step] an optimizer is stepped in training_step or in the optimizer_step hook only.");
  actions_->step_optimizer(optimizer, closure);
}

void StepState::manual_backward(const Tensor& loss, const BackwardOptions& options) {
  if (!manual)
    throw Error(
        "[trainer.manual_backward] the module uses automatic optimization, which runs backward itself. Return the "
        "loss, or override automatic_optimization() to return false.");
  if (!actions_) throw Error("[trainer.manual_backward] backward is called in training_step only.");
  actions_->manual_backward(loss, options);
}

}  // namespace fulgur::detail
