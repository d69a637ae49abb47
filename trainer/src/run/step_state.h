#pragma once

#include "fulgur/core/contracts/optimizer_handle.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::detail {

/// The actions that a module requests from the current training step; TrainingStep implements them.
class StepActions {
 public:
  virtual ~StepActions() = default;
  /// `RunContext::manual_backward`, in training_step.
  virtual void manual_backward(const Tensor& loss, const BackwardOptions& options) = 0;
  /// One step of `optimizer`, in training_step of manual optimization or in the optimizer_step hook.
  virtual void step_optimizer(Optimizer& optimizer, const Closure& closure) = 0;
};

/// How far a batch has come.
enum class StepProgress {
  none,
  backward,   ///< its gradients have begun to change those of the window
  under_way,  ///< the optimizer's step: the weights may have changed in part: an exception leaves them in no state to
              ///< resume from
  done        ///< in manual optimization: that of one optimizer at least
};

/// The training step under way.
class StepState {
 public:
  /// The functions that a module calls in its training_step, or in optimizer_step. Elsewhere they throw an Error that
  /// says so.
  void manual_backward(const Tensor& loss, const BackwardOptions& options) {
    if (!manual)
      throw Error(
          "[trainer.manual_backward] the module uses automatic optimization, which runs backward itself. Return the "
          "loss, or override automatic_optimization() to return false.");
    if (!actions_) throw Error("[trainer.manual_backward] backward is called in training_step only.");
    actions_->manual_backward(loss, options);
  }
  void step_optimizer(Optimizer& optimizer, const Closure& closure) {
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

  /// While it lives, the module may call these functions, and `actions` carries them out.
  class Allowed {
   public:
    Allowed(StepState& step, StepActions& actions) : step_(step) { step_.actions_ = &actions; }
    ~Allowed() { step_.actions_ = nullptr; }
    Allowed(const Allowed&) = delete;
    Allowed& operator=(const Allowed&) = delete;

   private:
    StepState& step_;
  };

  bool manual = false;      ///< manual optimization: a fact of the module, determined before its first step
  bool manual_sync = true;  ///< manual_backward exchanges gradients between ranks
  StepProgress progress = StepProgress::none;
  int64_t global_step_before = 0;  ///< of this batch

 private:
  StepActions* actions_ = nullptr;
};

}  // namespace fulgur::detail
