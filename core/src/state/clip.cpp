#include "fulgur/core/state/clip.h"

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

namespace fulgur {

namespace {

// Indices of tensors grouped by device and dtype; groups in order of first appearance.
std::vector<std::vector<size_t>> groups_of(const std::vector<Tensor>& tensors) {
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto found = std::ranges::find_if(groups, [&](const std::vector<size_t>& group) {
      const Tensor& first = tensors[group.front()];
      return first.device() == tensors[i].device() && first.scalar_type() == tensors[i].scalar_type();
    });
    if (found == groups.end())
      groups.push_back({i});
    else
      found->push_back(i);
  }
  return groups;
}

std::vector<Tensor> chosen(const std::vector<Tensor>& tensors, const std::vector<size_t>& indices) {
  std::vector<Tensor> out;
  out.reserve(indices.size());
  for (const size_t i : indices) out.push_back(tensors[i]);
  return out;
}

}  // namespace

std::vector<std::vector<Tensor>> by_device_and_dtype(const std::vector<Tensor>& tensors) {
  std::vector<std::vector<Tensor>> out;
  for (const auto& group : groups_of(tensors)) out.push_back(chosen(tensors, group));
  return out;
}

std::vector<Tensor> norms_of(const std::vector<Tensor>& tensors, double norm_type) {
  at::NoGradGuard no_grad;
  std::vector<Tensor> norms(tensors.size());
  if (tensors.empty()) return norms;
  const at::Device home = tensors.front().device();
  for (const auto& group : groups_of(tensors)) {
    // A norm in float16 is infinite above 65,504.
    const at::ScalarType type = tensors[group.front()].scalar_type();
    const bool is_half = type == at::kHalf || type == at::kBFloat16;
    const std::vector<Tensor> of_group =
        at::_foreach_norm(chosen(tensors, group), norm_type, is_half ? std::optional(at::kFloat) : std::nullopt);
    for (size_t i = 0; i < group.size(); ++i)
      norms[group[i]] = of_group[i].device() == home ? of_group[i] : of_group[i].to(home);
  }
  const at::ScalarType wide = norms.front().scalar_type();
  for (Tensor& norm : norms)
    if (norm.scalar_type() != wide) norm = norm.to(wide);
  return norms;
}

Tensor grad_norm(const std::vector<Tensor>& gradients) {
  at::NoGradGuard no_grad;
  if (gradients.empty()) return at::zeros({});
  // In the order of the gradients, so that the bits do not depend on the placement of layers.
  return at::linalg_vector_norm(at::stack(norms_of(gradients, 2)), 2);
}

Tensor clip_grad_norm(const std::vector<Tensor>& gradients, double max_norm) {
  const Tensor total = grad_norm(gradients);
  clip_grad_norm(gradients, max_norm, total);
  return total;
}

void clip_grad_norm(const std::vector<Tensor>& gradients, double max_norm, const Tensor& norm) {
  at::NoGradGuard no_grad;
  // A CPU scalar divides in one kernel, on whichever device the norm is.
  const Tensor most = at::scalar_tensor(max_norm, norm.scalar_type());
  const Tensor coefficient = at::div(most, norm.add(1e-6)).clamp_max_(1.0);
  for (const auto& group : by_device_and_dtype(gradients)) {
    const Tensor& first = group.front();
    at::_foreach_mul_(group, coefficient.to(first.options().dtype(first.scalar_type())));
  }
}

void clip_grad_value(const std::vector<Tensor>& gradients, double clip_value) {
  at::NoGradGuard no_grad;
  for (const auto& group : by_device_and_dtype(gradients)) {
    at::_foreach_clamp_min_(group, -clip_value);
    at::_foreach_clamp_max_(group, clip_value);
  }
}

}  // namespace fulgur
