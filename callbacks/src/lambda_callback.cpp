#include "fulgur/callbacks/lambda_callback.h"

namespace fulgur {

LambdaCallback::LambdaCallback(Hooks hooks) : hooks_(std::move(hooks)) {
  HookMask mask;
#define FULGUR_LOOK(hook) mask.set(Hook::hook, static_cast<bool>(hooks_.hook));
  FULGUR_STEP_HOOKS(FULGUR_LOOK)
  FULGUR_CALLBACK_HOOKS(FULGUR_LOOK)
#undef FULGUR_LOOK
  mask.exact = true;
  detail::ComponentAccess::set_overridden<Callback>(*this, mask);
}

LambdaCallback::~LambdaCallback() = default;

}  // namespace fulgur
