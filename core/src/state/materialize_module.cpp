#include "fulgur/core/state/materialize_module.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <utility>

#include "fulgur/core/state/stored_values.h"

namespace fulgur {

void materialize_module(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  const auto read = [](Tensor& tensor) {
    if (!stored_values(tensor)) return;
    const Tensor gradient = std::exchange(tensor.mutable_grad(), Tensor());
    replace_data(tensor, read_now(tensor));
    if (gradient.defined()) tensor.mutable_grad() = gradient;
  };
  for (Tensor& parameter : module.parameters()) read(parameter);
  for (Tensor& buffer : module.buffers()) read(buffer);
}

}  // namespace fulgur
