// SGD's fused step. The CPU kernel of LibTorch 2.11 skips whole vectors of bfloat16 and float16. The CUDA kernel
// computes them in float32 and rounds once.
#include <ATen/ops/_fused_sgd.h>

#include "twin.h"
#include "widened.h"

namespace simulated_cuda {
namespace {

void write_back(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  for (size_t i = 0; i < to.size(); ++i)
    if (!to[i].is_same(from[i])) to[i].copy_(from[i]);
}

// (params, grads, buffers, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step, grad_scale?,
// found_inf?), in place
template <class Rate>
void step(const TwinCall& call, const Rate& lr) {
  const auto params = call.arguments[0].toTensorVector(), grads = call.arguments[1].toTensorVector(),
             buffers = call.arguments[2].toTensorVector();
  const auto wide_params = widened(params), wide_grads = widened(grads), wide_buffers = widened(buffers);
  at::_fused_sgd_(wide_params, wide_grads, wide_buffers, call.number(3), call.number(4), lr, call.number(6),
                  call.arguments[7].toBool(), call.arguments[8].toBool(), call.arguments[9].toBool(), call.optional(10),
                  call.optional(11));
  write_back(params, wide_params);
  write_back(grads, wide_grads);
  write_back(buffers, wide_buffers);
  call.arguments.clear();
}

void by_host_rate(const TwinCall& call) { step(call, call.number(5)); }
void by_device_rate(const TwinCall& call) { step(call, call.tensor(5)); }

}  // namespace

void add_optimizer_twins(HandWrittenTwins& twins) {
  twins["aten::_fused_sgd_"] = {Mode::beside, by_host_rate};
  twins["aten::_fused_sgd_.tensor_lr"] = {Mode::beside, by_device_rate};
}

}  // namespace simulated_cuda
