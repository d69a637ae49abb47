#include "distributed/recorded_exchange.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>

#include <map>

#include "distributed/process_group_impl.h"

namespace fulgur::detail {
namespace {

// The place of a tensor in a bucket, with the elements in the order of LibTorch's Reducer: that of memory.
Tensor place_in(const Tensor& bucket, int64_t begin, const Tensor& like) {
  if (like.is_non_overlapping_and_dense()) return bucket.as_strided(like.sizes(), like.strides(), begin);
  return bucket.narrow(0, begin, like.numel()).view(like.sizes());
}

}  // namespace

RecordedExchange::RecordedExchange(ProcessGroup& group)
    : group_(group),
      sum_([&group](const Tensor& values) { group.impl().collectives->sum(values); }),
      of_rank_0_([&group](const Tensor& values) { values.copy_(group.impl().collectives->broadcast(values, 0)); }) {}

void RecordedExchange::average_gradients(const GradientExchange& reducer) const {
  const at::NoGradGuard no_grad;
  std::vector<std::string> missing;
  for (const auto& [name, value] : reducer.parameters())
    if (!value.grad().defined()) missing.push_back(name);
  if (!missing.empty()) throw no_gradient_error(missing, group_.place().rank);
  const Tensor share = at::native::wrapped_scalar_tensor(1.0 / static_cast<double>(group_.place().world_size));
  for (const std::vector<int64_t>& indices : reducer.buckets()) {
    int64_t numel = 0;
    for (const int64_t index : indices) numel += reducer.parameters()[static_cast<size_t>(index)].value.numel();
    const Tensor& first = reducer.parameters()[static_cast<size_t>(indices.front())].value;
    const Tensor bucket = at::empty({numel}, first.options().requires_grad(false));
    std::vector<Tensor> gradients, places;
    int64_t begin = 0;
    for (const int64_t index : indices) {
      const Tensor& value = reducer.parameters()[static_cast<size_t>(index)].value;
      gradients.push_back(value.grad());
      places.push_back(place_in(bucket, begin, value));
      begin += value.numel();
      // The Reducer divides before it sums.
      at::mul_out(places.back(), gradients.back(), share);
    }
    sum_(bucket);
    at::_foreach_copy_(gradients, places);
  }
}

void RecordedExchange::take_from_rank_0(const std::vector<Tensor>& tensors) const {
  const at::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<Tensor>> alike;
  for (const Tensor& tensor : tensors) alike[tensor.scalar_type()].push_back(tensor);
  for (const auto& [dtype, members] : alike) {
    int64_t numel = 0;
    for (const Tensor& tensor : members) numel += tensor.numel();
    const Tensor values = at::empty({numel}, members.front().options());
    std::vector<Tensor> places;
    int64_t begin = 0;
    for (const Tensor& tensor : members) {
      places.push_back(values.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
    at::_foreach_copy_(places, members);
    of_rank_0_(values);
    at::_foreach_copy_(members, places);
  }
}

}  // namespace fulgur::detail
