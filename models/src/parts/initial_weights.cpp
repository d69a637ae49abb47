#include "parts/initial_weights.h"

#include <ATen/core/grad_mode.h>

#include <cmath>

namespace fulgur::detail {

void trunc_normal(const Tensor& weight, double deviation) {
  const at::NoGradGuard no_grad;
  const auto below = [deviation](double x) { return (1 + std::erf(x / deviation / std::sqrt(2.0))) / 2; };
  weight.uniform_(2 * below(-2) - 1, 2 * below(2) - 1);
  // With a small deviation the bounds are -1 and 1, whose inverse is infinite: one weight in 2^24 would be -2.
  constexpr double kNearOne = 1 - 1.2e-7;
  weight.clamp_(-kNearOne, kNearOne).erfinv_().mul_(deviation * std::sqrt(2.0)).clamp_(-2, 2);
}

void he_normal_of_outputs(const Tensor& weight) {
  const at::NoGradGuard no_grad;
  const auto fan_out = static_cast<double>(weight.size(0) * weight.size(2) * weight.size(3));
  weight.normal_(0, std::sqrt(2 / fan_out));
}

void xavier_uniform(const Tensor& weight) {
  const at::NoGradGuard no_grad;
  const double bound = std::sqrt(6.0 / static_cast<double>(weight.size(0) + weight.size(1)));
  weight.uniform_(-bound, bound);
}

}  // namespace fulgur::detail
