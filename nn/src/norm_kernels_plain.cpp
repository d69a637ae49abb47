#include <ATen/OpMathType.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros.h>

#include "norm_kernels.h"

namespace fulgur::nn {
namespace {

// 16-bit types as float32, others unchanged.
Tensor wide(const Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::toOpMathType(tensor.scalar_type())) : tensor;
}

void fold(const Tensor& running, const Tensor& value, double factor) {
  if (running.defined()) running.copy_(running.to(at::kDouble).mul_(1 - factor).add_(value, factor));
}

class PlainKernels final : public NormKernels {
  // In double: two means of many values far from zero must not cancel, and a count is exact.
  Tensor summarize(const Tensor& input, double) const override {
    const int64_t channels = input.size(1);
    const auto doubles = input.options().dtype(at::kDouble);
    if (input.numel() == 0) return at::zeros({2 * channels + 1}, doubles);
    const auto [mean, var] = at::batch_norm_update_stats(wide(input), {}, {}, 0.0);
    return at::cat({mean.to(at::kDouble), var.to(at::kDouble), at::full({1}, input.numel() / channels, doubles)});
  }

  // Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979), of all
  // parts at once.
  NormStatistics combine(const Tensor& input, const Tensor& summaries, const RunningStatistics& running,
                         double eps) const override {
    const int64_t channels = input.size(1);
    const Tensor means = summaries.narrow(1, 0, channels), vars = summaries.narrow(1, channels, channels);
    const Tensor counts = summaries.narrow(1, 2 * channels, 1), total = counts.sum();
    const Tensor mean = (means * counts).sum(0).div_(total);
    const Tensor squares = (means - mean).square_().add_(vars).mul_(counts).sum(0);
    const Tensor var = squares / total;
    fold(running.mean, mean, running.factor);
    fold(running.var, squares / (total - 1), running.factor);
    const auto type = at::toOpMathType(input.scalar_type());
    return {mean.to(type), (var + eps).rsqrt_().to(type), var.to(type), counts.squeeze(1)};
  }

  Tensor normalize(const Tensor& input, const Tensor& weight, const Tensor& bias, const NormStatistics& statistics,
                   double eps) const override {
    return std::get<0>(at::native_batch_norm(wide(input), wide(weight), wide(bias), statistics.mean, statistics.var,
                                             /*training=*/false, 0.0, eps))
        .to(input.scalar_type());
  }

  NormSums reduce(const Tensor& dy, const Tensor& input, const Tensor& weight, const NormStatistics& statistics,
                  bool for_weight, bool for_bias) const override {
    auto [unused, projection, sum] =
        at::native_batch_norm_backward(wide(dy), wide(input), {}, {}, {}, statistics.mean, statistics.invstd,
                                       /*train=*/true, 0.0, {false, true, true});
    return {sum, projection, for_weight ? projection.to(weight.scalar_type()) : Tensor(),
            for_bias ? sum.to(weight.scalar_type()) : Tensor()};
  }

  // (dy - sum(dy) / n - x_hat sum(dy x_hat) / n) * weight * invstd, in three passes.
  Tensor input_gradient(const Tensor& dy, const Tensor& input, const Tensor& weight, const NormStatistics& statistics,
                        const NormSums& sums) const override {
    std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
    shape[1] = input.size(1);
    const double n = statistics.counts.sum().item<double>();
    const Tensor scale = weight.defined() ? statistics.invstd * wide(weight) : statistics.invstd;
    const Tensor slope = (scale * statistics.invstd * sums.projection).div_(-n), offset = (scale * sums.dy).div_(-n);
    const Tensor centred = wide(input) - statistics.mean.view(shape);
    return at::addcmul(offset.view(shape), centred, slope.view(shape))
        .addcmul_(wide(dy), scale.view(shape))
        .to(input.scalar_type());
  }
};

}  // namespace

const NormKernels& plain_norm_kernels() {
  static const PlainKernels kernels;
  return kernels;
}

}  // namespace fulgur::nn
