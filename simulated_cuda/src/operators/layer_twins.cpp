// Operations whose CUDA kernel saves different tensors for its backward than the CPU kernel: tensors of other sizes or
// dtypes, or none.
#include <ATen/ops/_embedding_bag.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/searchsorted.h>

#include "twin.h"
#include "widened.h"

namespace simulated_cuda {
namespace {

// (input, …) → (output, buffer): CUDA's buffer is empty.
void log_sigmoid(const TwinCall& call) {
  const at::Tensor& input = call.tensor(0);
  const at::Tensor x = widened(input);
  call.arguments = {in_dtype_of(x.clamp_max(0) - x.abs().neg().exp().log1p(), input), at::Tensor()};
}

// (grad, input, buffer, …) → grad of the input, without the buffer
void log_sigmoid_backward(const TwinCall& call) {
  const at::Tensor& input = call.tensor(1);
  call.arguments = {in_dtype_of(widened(call.tensor(0)) * widened(input).neg().sigmoid(), input)};
}

// (weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights?, include_last_offset, padding_idx) →
// (output, offset2bag, bag_size, max_indices). The CPU kernel omits results that its own backward does not need in a
// mode.
void embedding_bag(const TwinCall& call) {
  const at::Tensor &weight = call.tensor(0), indices = call.tensor(1).to(at::kLong),
                   offsets = call.tensor(2).to(at::kLong);
  const bool last_offset = call.arguments[7].toBool();
  const int64_t mode = call.arguments[4].toInt(), padding = call.arguments[8].toInt();
  auto [output, of_index, sizes, of_maximum] =
      at::_embedding_bag(widened(weight), call.tensor(1), call.tensor(2), call.arguments[3].toBool(), mode,
                         call.arguments[5].toBool(), widened(call.optional(6)), last_offset, padding);
  const auto wanted = [&](size_t i) { return call.outputs[i].toTensor().numel() > 0; };
  const int64_t bags = offsets.numel() - (last_offset ? 1 : 0);
  // The bag of each index: the number of bags that begin at or before it, minus one.
  of_index = at::searchsorted(offsets.narrow(0, 0, bags), at::ones(indices.sizes(), at::kLong).cumsum(0) - 1,
                              /*out_int32=*/false, /*right=*/true) -
             1;
  const at::Tensor counted = of_index.masked_select(indices != padding);
  sizes = at::bincount(counted, {}, bags);
  if (call.outputs[2].toTensor().numel() > bags) sizes = at::cat({sizes, sizes.new_zeros({1})});
  call.arguments = {in_dtype_of(output, weight), wanted(1) ? of_index : at::Tensor(), wanted(2) ? sizes : at::Tensor(),
                    wanted(3) ? of_maximum : at::Tensor()};
}

// (input, dim, half_to_float, …) → output. Only CUDA's kernel takes float16 and returns float32, as under autocast.
template <at::Tensor (*kSoftmax)(const at::Tensor&, int64_t, bool)>
void softmax(const TwinCall& call) {
  const at::Tensor& input = call.tensor(0);
  const bool to_float = call.arguments[2].toBool();
  call.arguments = {kSoftmax(to_float ? input.to(at::kFloat) : input, call.arguments[1].toInt(), false)};
}

// (grad, output, dim, input_dtype, …) → grad of the input, in its dtype
template <at::Tensor (*kBackward)(const at::Tensor&, const at::Tensor&, int64_t, at::ScalarType)>
void softmax_backward(const TwinCall& call) {
  const at::Tensor &grad = call.tensor(0), &output = call.tensor(1);
  const at::ScalarType input_dtype = call.arguments[3].toScalarType();
  call.arguments = {kBackward(grad, output, call.arguments[2].toInt(), grad.scalar_type()).to(input_dtype)};
}

}  // namespace

void add_layer_twins(HandWrittenTwins& twins) {
  for (const char* name : {"aten::log_sigmoid_forward", "aten::log_sigmoid_forward.output"})
    twins[name] = {Mode::beside, log_sigmoid};
  for (const char* name : {"aten::log_sigmoid_backward", "aten::log_sigmoid_backward.grad_input"})
    twins[name] = {Mode::beside, log_sigmoid_backward};
  for (const char* name : {"aten::_embedding_bag", "aten::_embedding_bag_forward_only"})
    twins[name] = {Mode::beside, embedding_bag};
  for (const std::string overload : {"", ".out"}) {
    twins["aten::_softmax" + overload] = {Mode::beside, softmax<at::_softmax>};
    twins["aten::_log_softmax" + overload] = {Mode::beside, softmax<at::_log_softmax>};
    twins["aten::_softmax_backward_data" + overload] = {Mode::beside, softmax_backward<at::_softmax_backward_data>};
    twins["aten::_log_softmax_backward_data" + overload] = {Mode::beside,
                                                            softmax_backward<at::_log_softmax_backward_data>};
  }
}

}  // namespace simulated_cuda
