#pragma once

#include <concepts>
#include <functional>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur::nn {

/// Options with Python's names and defaults.
struct GradcheckOptions {
  double eps = 1e-6;   ///< step of the central differences
  double atol = 1e-5;  ///< |analytical - numerical| <= atol + rtol * |numerical|
  double rtol = 1e-3;
  double nondet_tol = 0.0;  ///< largest difference between two backward passes
};

using TensorFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Checks the backward of `function` against central differences, like Python's `torch.autograd.gradcheck` (slow mode):
/// the Jacobian of each output with respect to each input that requires a gradient; that two backward passes agree; and
/// that a gradient of zeros gives zeros. Throws an Error that names output, input, the largest difference and where it
/// is; a ConfigError if no input requires a gradient, or one that does is not float64, for which differences are
/// meaningless. Use small inputs, since the function is called twice per value.
FULGUR_API void gradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options = {});

/// Checks the second derivative, with output gradients drawn from a standard normal, like
/// `torch.autograd.gradgradcheck`.
FULGUR_API void gradgradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                              const GradcheckOptions& options = {});

namespace detail {
/// A function of as many tensors as there are inputs, which returns one or several tensors.
template <class Fn>
concept OfTensors = !std::convertible_to<Fn, TensorFunction>;

template <size_t N, class Fn>
TensorFunction as_tensor_function(Fn function) {
  return [function](const std::vector<Tensor>& inputs) mutable {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      auto result = std::invoke(function, inputs[I]...);
      if constexpr (std::convertible_to<decltype(result), Tensor>)
        return std::vector<Tensor>{result};
      else
        return std::vector<Tensor>(std::move(result));
    }
    (std::make_index_sequence<N>());
  };
}
}  // namespace detail

/// Makes `gradcheck(fn, {x, w})` work for `Tensor fn(x, w)` or `std::vector<Tensor> fn(x, w)`.
template <detail::OfTensors Fn, size_t N>
void gradcheck(Fn function, const Tensor (&inputs)[N], const GradcheckOptions& options = {}) {
  gradcheck(detail::as_tensor_function<N>(std::move(function)), {inputs, inputs + N}, options);
}

template <detail::OfTensors Fn, size_t N>
void gradgradcheck(Fn function, const Tensor (&inputs)[N], const GradcheckOptions& options = {}) {
  gradgradcheck(detail::as_tensor_function<N>(std::move(function)), {inputs, inputs + N}, options);
}

}  // namespace fulgur::nn
