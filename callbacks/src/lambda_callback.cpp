#include "fulgur/callbacks/lambda_callback.h"

namespace fulgur {

LambdaCallback::LambdaCallback(Hooks hooks) : hooks_(std::move(hooks)) {
  HookMask mask;
#define FULGUR_LOOK(hook) mask.set(Hook::hook, static_cast<bool>(hooks_.hook))
  FULGUR_LOOK(on_train_batch_start);
  FULGUR_LOOK(on_train_batch_end);
  FULGUR_LOOK(on_before_zero_grad);
  FULGUR_LOOK(on_before_backward);
  FULGUR_LOOK(on_after_backward);
  FULGUR_LOOK(on_before_optimizer_step);
  FULGUR_LOOK(on_validation_batch_start);
  FULGUR_LOOK(on_validation_batch_end);
  FULGUR_LOOK(on_test_batch_start);
  FULGUR_LOOK(on_test_batch_end);
  FULGUR_LOOK(on_predict_batch_start);
  FULGUR_LOOK(on_predict_batch_end);
#undef FULGUR_LOOK
  mask.exact = true;
  set_overridden(mask);
}

LambdaCallback::~LambdaCallback() = default;

}  // namespace fulgur
