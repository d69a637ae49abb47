#pragma once

#include <cstdint>
#include <type_traits>

namespace fulgur {

/// Hooks whose dispatch depends on whether they are overridden.
enum class Hook : uint8_t {
  validation_step,
  test_step,
  predict_step,
  on_before_batch_transfer,
  transfer_batch_to_device,
  on_after_batch_transfer,
  num_tokens,
  on_train_batch_start,
  on_train_batch_end,
  on_before_zero_grad,
  on_before_backward,
  on_after_backward,
  on_before_optimizer_step,
  backward,
  configure_gradient_clipping,
  optimizer_step,
  optimizer_zero_grad,
  on_validation_batch_start,
  on_validation_batch_end,
  on_test_batch_start,
  on_test_batch_end,
  on_predict_batch_start,
  on_predict_batch_end,
  count_,
};

/// Which hooks a class overrides. All, until a factory that knows the class has checked.
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
