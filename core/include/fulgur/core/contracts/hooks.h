#pragma once

#include <cstdint>
#include <type_traits>

namespace fulgur {

// The hooks whose dispatch depends on whether they are overridden, as HOOK(name).
#define FULGUR_TRANSFER_HOOKS(HOOK) \
  HOOK(on_before_batch_transfer)    \
  HOOK(transfer_batch_to_device)    \
  HOOK(on_after_batch_transfer)
// Hooks of modules and callbacks.
#define FULGUR_STEP_HOOKS(HOOK) \
  HOOK(on_before_zero_grad)     \
  HOOK(on_before_backward)      \
  HOOK(on_after_backward)       \
  HOOK(on_before_optimizer_step)
// Hooks of modules only.
#define FULGUR_MODULE_HOOKS(HOOK)   \
  HOOK(validation_step)             \
  HOOK(test_step)                   \
  HOOK(predict_step)                \
  HOOK(on_train_epoch_start)        \
  HOOK(on_train_epoch_end)          \
  HOOK(on_train_end)                \
  HOOK(on_validation_epoch_end)     \
  HOOK(on_validation_end)           \
  HOOK(on_test_epoch_end)           \
  HOOK(on_test_end)                 \
  HOOK(on_predict_epoch_end)        \
  HOOK(on_predict_end)              \
  HOOK(num_tokens)                  \
  HOOK(backward)                    \
  HOOK(configure_gradient_clipping) \
  HOOK(optimizer_step)              \
  HOOK(optimizer_zero_grad)
// Hooks of callbacks only.
#define FULGUR_CALLBACK_HOOKS(HOOK) \
  HOOK(on_exception)                \
  HOOK(on_train_batch_start)        \
  HOOK(on_train_batch_end)          \
  HOOK(on_validation_batch_start)   \
  HOOK(on_validation_batch_end)     \
  HOOK(on_test_batch_start)         \
  HOOK(on_test_batch_end)           \
  HOOK(on_predict_batch_start)      \
  HOOK(on_predict_batch_end)

enum class Hook : uint8_t {
#define FULGUR_ENUMERATOR(hook) hook,
  FULGUR_TRANSFER_HOOKS(FULGUR_ENUMERATOR) FULGUR_MODULE_HOOKS(FULGUR_ENUMERATOR) FULGUR_STEP_HOOKS(FULGUR_ENUMERATOR)
      FULGUR_CALLBACK_HOOKS(FULGUR_ENUMERATOR)
#undef FULGUR_ENUMERATOR
          count_,
};

/// Which hooks a class overrides. It has all hooks until a factory that knows the class has checked.
class HookMask {
 public:
  bool has(Hook hook) const { return (bits_ >> static_cast<int>(hook)) & 1u; }
  void set(Hook hook, bool on) {
    const uint64_t bit = uint64_t{1} << static_cast<int>(hook);
    bits_ = on ? bits_ | bit : bits_ & ~bit;
  }
  /// False until `set` has determined it from the class.
  bool exact = false;

 private:
  uint64_t bits_ = ~uint64_t{0};
};

}  // namespace fulgur

/// True if T (derived from Base) overrides `hook`: then `&T::hook` has another class in its type. A hook that T made
/// inaccessible counts as overridden.
#define FULGUR_OVERRIDES(T, Base, hook)                                   \
  ([]<class T_>() {                                                       \
    if constexpr (requires { &T_::hook; })                                \
      return !std::is_same_v<decltype(&T_::hook), decltype(&Base::hook)>; \
    else                                                                  \
      return true;                                                        \
  }.template operator()<T>())
