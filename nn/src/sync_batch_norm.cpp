#include "sync_batch_norm.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::nn {
namespace {

const NormKernels& kernels_for(const Tensor& input) {
  return input.is_cuda() ? cuda_norm_kernels() : plain_norm_kernels();
}

// A rank with two values per channel knows that there are enough, so all ranks reach the same answer, and few have to
// check.
void check_count(const Tensor& input, const Tensor& summaries, const SyncBatchNormCall& call) {
  if (input.numel() > input.size(1) || summaries.select(1, -1).sum().item<double>() > 1) return;
  throw Error(cat("[nn.", call.layer, "] training needs more than one value per channel in all ranks together; got ",
                  shape_text(input.sizes()), " on rank ", call.collectives->rank(), " of ",
                  call.collectives->world_size(), ". Use larger batches."));
}

class SyncBatchNorm : public torch::autograd::Function<SyncBatchNorm> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

 public:
  static Tensor forward(Context* context, const Tensor& input, const std::optional<Tensor>& weight,
                        const std::optional<Tensor>& bias, const SyncBatchNormCall* call) {
    const NormKernels& kernels = kernels_for(input);
    const Tensor summaries = call->collectives->all_gather_same(kernels.summarize(input, call->eps));
    check_count(input, summaries, *call);
    const NormStatistics statistics = kernels.combine(input, summaries, call->running, call->eps);
    context->save_for_backward(
        {input, weight.value_or(Tensor()), statistics.mean, statistics.invstd, statistics.counts});
    // An IValue cannot hold a pointer of this type.
    context->saved_data["collectives"] = static_cast<int64_t>(reinterpret_cast<intptr_t>(call->collectives));
    if (input.numel() == 0) return at::empty_like(input);
    return kernels.normalize(input, weight.value_or(Tensor()), bias.value_or(Tensor()), statistics, call->eps);
  }

  static Tensors backward(Context* context, const Tensors& gradients) {
    if (at::GradMode::is_enabled())
      throw Error(
          "[nn.BatchNorm] a batch norm that is synchronised over ranks has no second derivative; got backward with "
          "create_graph. "
          "Switch sync_batchnorm off.");
    const Tensors saved = context->get_saved_variables();
    const Tensor &dy = gradients[0], &input = saved[0], &weight = saved[1];
    const NormStatistics statistics{saved[2], saved[3], {}, saved[4]};
    const bool for_weight = weight.defined() && context->needs_input_grad(1),
               for_bias = weight.defined() && context->needs_input_grad(2);
    const NormKernels& kernels = kernels_for(input);
    const bool empty = input.numel() == 0;
    NormSums sums =
        empty ? nothing(input, weight) : kernels.reduce(dy, input, weight, statistics, for_weight, for_bias);
    Tensor input_gradient;
    if (context->needs_input_grad(0)) {
      auto& collectives =
          *reinterpret_cast<Collectives*>(static_cast<intptr_t>(context->saved_data["collectives"].toInt()));
      const Tensor total = collectives.all_reduce(at::cat({sums.dy, sums.projection}), ReduceOp::sum);
      sums.dy = total.narrow(0, 0, input.size(1));
      sums.projection = total.narrow(0, input.size(1), input.size(1));
      input_gradient = empty ? at::empty_like(input) : kernels.input_gradient(dy, input, weight, statistics, sums);
    }
    return {input_gradient, for_weight ? sums.weight_gradient : Tensor(), for_bias ? sums.bias_gradient : Tensor(),
            Tensor()};
  }

 private:
  // A rank without samples takes part because the others need it.
  static NormSums nothing(const Tensor& input, const Tensor& weight) {
    const Tensor zeros = at::zeros({input.size(1)}, input.options().dtype(at::toOpMathType(input.scalar_type())));
    const Tensor gradient = weight.defined() ? at::zeros_like(weight) : Tensor();
    return {zeros, zeros, gradient, gradient};
  }
};

}  // namespace

Tensor sync_batch_norm(const Tensor& input, const Tensor& weight, const Tensor& bias, const SyncBatchNormCall& call) {
  return SyncBatchNorm::apply(input, given(weight), given(bias), &call);
}

}  // namespace fulgur::nn
