#include "distributed/average_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "distributed/process_group_impl.h"

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

// The value of `key` in a list, in which it is added if it is missing. The order of first use is the same on all ranks.
template <class Key, class Value>
Value& value_of(std::vector<std::pair<Key, Value>>& list, const Key& key) {
  auto found = std::ranges::find(list, key, &std::pair<Key, Value>::first);
  if (found == list.end()) found = list.emplace(list.end(), key, Value());
  return found->second;
}

// A tensor's elements in the order of its indices: a view if they are so in memory.
Tensor flat_of(const Tensor& tensor) { return tensor.reshape({-1}); }

}  // namespace

GradientAverage::Kind GradientAverage::kind_of(const Tensor& gradient) const {
  at::ScalarType sent = gradient.scalar_type();
  if (gradient.is_floating_point() && compression_ == DDPStrategy::Compression::fp16) sent = at::kHalf;
  if (gradient.is_floating_point() && compression_ == DDPStrategy::Compression::bf16) sent = at::kBFloat16;
  return {sent, gradient.device()};
}

Tensor GradientAverage::block(const Kind& kind, int64_t numel) {
  const auto bytes = static_cast<int64_t>(c10::elementSize(kind.first));
  const int64_t size = std::clamp<int64_t>(block_bytes_ / bytes, 1, std::max<int64_t>(numel, 1));
  Tensor& memory = value_of(blocks_, kind);
  if (!memory.defined() || memory.numel() < size)
    memory = at::empty({size}, at::TensorOptions(kind.second).dtype(kind.first));
  return memory.narrow(0, 0, size);
}

void GradientAverage::reserve(const std::vector<Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<Kind, int64_t>> sizes;
  for (const Tensor& parameter : parameters) value_of(sizes, kind_of(parameter)) += parameter.numel();
  for (const auto& [kind, numel] : sizes) block(kind, numel);
}

void GradientAverage::average(const Optimizer& optimizer, ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<Kind, std::vector<Tensor>>> alike;
  for (const Tensor& parameter : parameters_with_gradient(optimizer, group.collectives())) {
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    if (parameter.grad().is_sparse()) parameter.mutable_grad() = parameter.grad().to_dense();
    value_of(alike, kind_of(parameter.grad())).push_back(parameter.grad());
  }
  for (const auto& [kind, gradients] : alike) average_alike(kind, gradients, group);
}

void GradientAverage::average_alike(const Kind& kind, const std::vector<Tensor>& gradients, ProcessGroup& group) {
  int64_t numel = 0;
  for (const Tensor& gradient : gradients) numel += gradient.numel();
  const Tensor memory = block(kind, numel);
  // Parts of gradients, and where they are in the block.
  std::vector<Tensor> parts, places;
  std::vector<std::pair<Tensor, Tensor>> to_copy;  // gradients that are not contiguous, with their elements in order
  int64_t used = 0;
  const auto exchange = [&] {
    if (used == 0) return;
    at::_foreach_copy_(places, parts);
    std::vector<Tensor> sent{memory.narrow(0, 0, used)};
    // LibTorch's hooks divide before they sum: a sum may exceed what half precision can hold.
    if (compression_ != DDPStrategy::Compression::none) sent[0].div_(group.collectives().world_size());
    {
      const ExchangeMark mark(*group.impl().heartbeat, "all_reduce");
      run_exchange(group, "all_reduce", [&] { group.impl().group->allreduce(sent)->wait(); });
    }
    if (compression_ == DDPStrategy::Compression::none) sent[0].div_(group.collectives().world_size());
    at::_foreach_copy_(parts, places);
    parts.clear();
    places.clear();
    used = 0;
  };
  for (const Tensor& gradient : gradients) {
    const Tensor flat = flat_of(gradient);
    if (!flat.is_alias_of(gradient)) to_copy.emplace_back(gradient, flat);
    for (int64_t begin = 0; begin < flat.numel();) {
      const int64_t count = std::min(flat.numel() - begin, memory.numel() - used);
      parts.push_back(flat.narrow(0, begin, count));
      places.push_back(memory.narrow(0, used, count));
      begin += count;
      used += count;
      if (used == memory.numel()) exchange();
    }
  }
  exchange();
  for (const auto& [gradient, flat] : to_copy) gradient.copy_(flat.view(gradient.sizes()));
}

}  // namespace fulgur::detail
