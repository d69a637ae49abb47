#include "distributed/tensor_average.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace fulgur::detail {
namespace {

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

std::vector<Tensor> parameters_of(const Optimizer& optimizer) {
  std::vector<Tensor> parameters;
  for (const ParamGroup& group : optimizer.groups())
    parameters.insert(parameters.end(), group.of_module().begin(), group.of_module().end());
  return parameters;
}

std::vector<Tensor> parameters_with_gradient(const std::vector<Tensor>& parameters, Collectives& ranks) {
  if (parameters.empty()) return parameters;
  std::vector<int64_t> has_gradient;
  for (const Tensor& parameter : parameters) has_gradient.push_back(parameter.grad().defined() ? 1 : 0);
  const Tensor anywhere = ranks.all_reduce(at::tensor(has_gradient, at::kLong), ReduceOp::max);
  std::vector<Tensor> wanted;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (anywhere.const_data_ptr<int64_t>()[i] != 0) wanted.push_back(parameters[i]);
  return wanted;
}

TensorAverage::Kind TensorAverage::kind_of(const Tensor& tensor) const {
  at::ScalarType sent = tensor.scalar_type();
  if (tensor.is_floating_point() && compression_ == DDPStrategy::Compression::fp16) sent = at::kHalf;
  if (tensor.is_floating_point() && compression_ == DDPStrategy::Compression::bf16) sent = at::kBFloat16;
  return {sent, tensor.device()};
}

Tensor TensorAverage::block(const Kind& kind, int64_t numel) {
  const auto bytes = static_cast<int64_t>(c10::elementSize(kind.first));
  const int64_t size = std::clamp<int64_t>(block_bytes_ / bytes, 1, std::max<int64_t>(numel, 1));
  Tensor& memory = value_of(blocks_, kind);
  if (!memory.defined() || memory.numel() < size)
    memory = at::empty({size}, at::TensorOptions(kind.second).dtype(kind.first));
  return memory.narrow(0, 0, size);
}

void TensorAverage::reserve(const std::vector<Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<Kind, int64_t>> sizes;
  for (const Tensor& parameter : parameters) value_of(sizes, kind_of(parameter)) += parameter.numel();
  for (const auto& [kind, numel] : sizes) block(kind, numel);
}

void TensorAverage::average_gradients(const std::vector<Tensor>& parameters, C10dCollectives& ranks,
                                      bool may_be_missing) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : may_be_missing ? parameters_with_gradient(parameters, ranks) : parameters) {
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    if (parameter.grad().is_sparse()) parameter.mutable_grad() = parameter.grad().to_dense();
    gradients.push_back(parameter.grad());
  }
  average(gradients, ranks);
}

void TensorAverage::average(const std::vector<Tensor>& tensors, C10dCollectives& ranks) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<Kind, std::vector<Tensor>>> alike;
  for (const Tensor& tensor : tensors) value_of(alike, kind_of(tensor)).push_back(tensor.detach());
  for (const auto& [kind, members] : alike) average_alike(kind, members, ranks);
}

void TensorAverage::average_alike(const Kind& kind, const std::vector<Tensor>& tensors, C10dCollectives& ranks) {
  int64_t numel = 0;
  for (const Tensor& tensor : tensors) numel += tensor.numel();
  const Tensor memory = block(kind, numel);
  // Parts of tensors, and where they are in the block.
  std::vector<Tensor> parts, places;
  std::vector<std::pair<Tensor, Tensor>> to_copy;  // tensors that are not contiguous, with their elements in order
  int64_t used = 0;
  const auto exchange = [&] {
    if (used == 0) return;
    at::_foreach_copy_(places, parts);
    const Tensor sent = memory.narrow(0, 0, used);
    // LibTorch's hooks divide before they sum: a sum may exceed what half precision can hold.
    if (compression_ != DDPStrategy::Compression::none) sent.div_(ranks.world_size());
    ranks.sum(sent);
    if (compression_ == DDPStrategy::Compression::none) sent.div_(ranks.world_size());
    at::_foreach_copy_(parts, places);
    parts.clear();
    places.clear();
    used = 0;
  };
  for (const Tensor& tensor : tensors) {
    const Tensor flat = flat_of(tensor);
    if (!flat.is_alias_of(tensor)) to_copy.emplace_back(tensor, flat);
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
  for (const auto& [tensor, flat] : to_copy) tensor.copy_(flat.view(tensor.sizes()));
}

}  // namespace fulgur::detail
