#include <ATen/AccumulateType.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/batch_norm_backward_elemt.h>
#include <ATen/ops/batch_norm_backward_reduce.h>
#include <ATen/ops/batch_norm_elemt.h>
#include <ATen/ops/batch_norm_gather_stats_with_counts.h>
#include <ATen/ops/batch_norm_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "norm_kernels.h"

namespace fulgur::nn {
namespace {

// Channels-last or contiguous, like `input`: the operations require this, and the same layout for both tensors.
Tensor dense(const Tensor& tensor, const Tensor& input) { return tensor.contiguous(input.suggest_memory_format()); }

Tensor dense_vector(const Tensor& tensor) { return tensor.defined() ? tensor.contiguous() : tensor; }

// The steps of Python's torch.nn.SyncBatchNorm, without its synchronization.
class CudaKernels final : public NormKernels {
  Tensor summarize(const Tensor& input, double eps) const override {
    const int64_t channels = input.size(1);
    const auto options = input.options().dtype(at::toAccumulateType(input.scalar_type(), /*is_cuda=*/true));
    // An inverse deviation of 1: with 0, the placeholder for no values would give infinity times zero.
    if (input.numel() == 0)
      return at::cat({at::zeros({channels}, options), at::ones({channels}, options), at::zeros({1}, options)});
    const auto [mean, invstd] = at::batch_norm_stats(dense(input, input), eps);
    return at::cat({mean, invstd, at::full({1}, input.numel() / channels, options)});
  }

  NormStatistics combine(const Tensor& input, const Tensor& summaries, const RunningStatistics& running,
                         double eps) const override {
    const int64_t channels = input.size(1);
    // The kernel goes from rank to rank and divides by the count so far: ranks without samples must come last.
    const Tensor order = at::argsort(summaries.select(1, 2 * channels), /*stable=*/true, 0, /*descending=*/true);
    const Tensor sorted = summaries.index_select(0, order);
    const Tensor counts = sorted.select(1, 2 * channels).contiguous();
    // It requires counts in the dtype of the running statistics, or else of its first argument: 16 bits would round
    // them.
    const auto wide = [&](const Tensor& tensor) { return tensor.defined() ? tensor.to(counts.scalar_type()) : tensor; };
    const Tensor running_mean = wide(running.mean), running_var = wide(running.var);
    const auto [mean, invstd] = at::batch_norm_gather_stats_with_counts(
        counts, sorted.narrow(1, 0, channels).contiguous(), sorted.narrow(1, channels, channels).contiguous(),
        running_mean, running_var, running.factor, eps, counts);
    if (!running_mean.is_same(running.mean)) {
      running.mean.copy_(running_mean);
      running.var.copy_(running_var);
    }
    return {mean, invstd, {}, counts.to(at::kInt)};
  }

  Tensor normalize(const Tensor& input, const Tensor& weight, const Tensor& bias, const NormStatistics& statistics,
                   double eps) const override {
    return at::batch_norm_elemt(dense(input, input), dense_vector(weight), dense_vector(bias), statistics.mean,
                                statistics.invstd, eps);
  }

  NormSums reduce(const Tensor& dy, const Tensor& input, const Tensor& weight, const NormStatistics& statistics,
                  bool for_weight, bool for_bias) const override {
    auto [sum_dy, sum_dy_xmu, weight_gradient, bias_gradient] =
        at::batch_norm_backward_reduce(dense(dy, input), dense(input, input), statistics.mean, statistics.invstd,
                                       dense_vector(weight), /*input_g=*/true, for_weight, for_bias);
    return {sum_dy, sum_dy_xmu, weight_gradient, bias_gradient};
  }

  Tensor input_gradient(const Tensor& dy, const Tensor& input, const Tensor& weight, const NormStatistics& statistics,
                        const NormSums& sums) const override {
    const Tensor scale = weight.defined() ? weight.contiguous().to(statistics.mean.scalar_type()) : weight;
    return at::batch_norm_backward_elemt(dense(dy, input), dense(input, input), statistics.mean, statistics.invstd,
                                         scale, sums.dy, sums.projection, statistics.counts);
  }
};

}  // namespace

const NormKernels& cuda_norm_kernels() {
  static const CudaKernels kernels;
  return kernels;
}

}  // namespace fulgur::nn
