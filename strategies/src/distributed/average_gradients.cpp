#include "distributed/average_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <map>
#include <utility>

namespace fulgur::detail {
namespace {

// Parameters that have a gradient on any rank.
std::vector<Tensor> parameters_with_gradient(const Optimizer& optimizer, Collectives& collectives) {
  std::vector<Tensor> parameters;
  std::vector<int64_t> has_gradient;
  for (const ParamGroup& group : optimizer.groups())
    for (const Tensor& parameter : group.of_module()) {
      parameters.push_back(parameter);
      has_gradient.push_back(parameter.grad().defined() ? 1 : 0);
    }
  if (parameters.empty()) return parameters;
  const Tensor anywhere = collectives.all_reduce(at::tensor(has_gradient, at::kLong), ReduceOp::max);
  std::vector<Tensor> wanted;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (anywhere.const_data_ptr<int64_t>()[i] != 0) wanted.push_back(parameters[i]);
  return wanted;
}

}  // namespace

void average_gradients(const Optimizer& optimizer, Collectives& collectives) {
  const at::NoGradGuard no_grad;
  std::map<std::pair<at::ScalarType, std::string>, std::vector<Tensor>> alike;
  for (const Tensor& parameter : parameters_with_gradient(optimizer, collectives)) {
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    if (parameter.grad().is_sparse()) parameter.mutable_grad() = parameter.grad().to_dense();
    const Tensor& gradient = parameter.grad();
    alike[{gradient.scalar_type(), gradient.device().str()}].push_back(gradient);
  }
  for (auto& [kind, gradients] : alike) {
    std::vector<Tensor> flat;
    for (const Tensor& gradient : gradients) flat.push_back(gradient.reshape({-1}));
    const Tensor mean = collectives.all_reduce(at::cat(flat), ReduceOp::mean);
    std::vector<Tensor> parts;
    int64_t begin = 0;
    for (const Tensor& gradient : gradients) {
      parts.push_back(mean.narrow(0, begin, gradient.numel()).view(gradient.sizes()));
      begin += gradient.numel();
    }
    at::_foreach_copy_(gradients, parts);
  }
}

}  // namespace fulgur::detail
