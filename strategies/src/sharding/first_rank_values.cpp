#include "sharding/first_rank_values.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <vector>

#include "distributed/process_group_impl.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/system/free_memory.h"

namespace fulgur::detail {

bool is_first_rank(const ProcessGroup& ranks) { return ranks.place().rank == 0; }

void send_from_first_rank(ProcessGroup& ranks, const char* strategy, const Tensor& values) {
  std::vector<Tensor> one{values};
  run_exchange(ranks, strategy, [&] { ranks.impl().group->broadcast(one)->wait(); });
}

Tensor values_of_first_rank(ProcessGroup& ranks, const char* strategy, const Tensor& tensor, at::Device device) {
  if (!stored_values(tensor)) return tensor;
  // What the tensors before this one have left.
  return_free_memory();
  Tensor whole =
      at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().requires_grad(false).device(device));
  const at::NoGradGuard no_grad;
  if (is_first_rank(ranks)) whole.copy_(read_now(tensor));
  send_from_first_rank(ranks, strategy, whole);
  return whole;
}

}  // namespace fulgur::detail
