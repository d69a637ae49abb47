#include "fulgur/core/clip.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/div.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace fulgur {

std::vector<std::vector<Tensor>> by_device_and_dtype(const std::vector<Tensor>& tensors) {
  std::vector<std::pair<std::pair<at::Device, at::ScalarType>, std::vector<Tensor>>> groups;
  for (const Tensor& tensor : tensors) {
    const std::pair key{tensor.device(), tensor.scalar_type()};
    auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == key; });
    if (found == groups.end()) found = groups.insert(groups.end(), {key, {}});
    found->second.push_back(tensor);
  }
  std::vector<std::vector<Tensor>> out;
  for (auto& group : groups) out.push_back(std::move(group.second));
  return out;
}

Tensor grad_norm(const std::vector<Tensor>& gradients) {
  at::NoGradGuard no_grad;
  if (gradients.empty()) return at::zeros({});
  const at::Device home = gradients.front().device();
  std::vector<Tensor> norms;
  for (const auto& group : by_device_and_dtype(gradients)) {
    // A norm in float16 is infinite above 65,504.
    const bool is_half = group.front().scalar_type() == at::kHalf || group.front().scalar_type() == at::kBFloat16;
    for (Tensor& norm : at::_foreach_norm(group, 2, is_half ? std::optional(at::kFloat) : std::nullopt))
      norms.push_back(norm.device() == home ? norm : norm.to(home));
  }
  const at::ScalarType wide = norms.front().scalar_type();
  for (Tensor& norm : norms)
    if (norm.scalar_type() != wide) norm = norm.to(wide);
  return at::linalg_vector_norm(at::stack(norms), 2);
}

Tensor clip_grad_norm(const std::vector<Tensor>& gradients, double max_norm) {
  at::NoGradGuard no_grad;
  const Tensor total = grad_norm(gradients);
  // A number on the CPU divides in one kernel, wherever the norm is.
  const Tensor most = at::scalar_tensor(max_norm, total.scalar_type());
  const Tensor coefficient = at::div(most, total.add(1e-6)).clamp_max_(1.0);
  for (const auto& group : by_device_and_dtype(gradients)) {
    const Tensor& first = group.front();
    at::_foreach_mul_(group, coefficient.to(first.options().dtype(first.scalar_type())));
  }
  return total;
}

void clip_grad_value(const std::vector<Tensor>& gradients, double clip_value) {
  at::NoGradGuard no_grad;
  for (const auto& group : by_device_and_dtype(gradients)) {
    at::_foreach_clamp_min_(group, -clip_value);
    at::_foreach_clamp_max_(group, clip_value);
  }
}

}  // namespace fulgur
