#include "sharding/gradient_shards.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "distributed/process_group_impl.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

void GradientShards::start(size_t unit, std::vector<uint8_t> has_gradient) {
  const at::NoGradGuard no_grad;
  const FlatUnit& flat = *shards_.units()[unit];
  const auto& parameters = flat.parameters();
  const Tensor& first = parameters.front().value;
  // Zeros, since the end is padded, and a parameter may have no gradient here.
  Exchange exchange{.unit = unit,
                    .has_gradient = std::move(has_gradient),
                    .buffer = at::zeros({flat.numel()}, first.options().requires_grad(false).dtype(
                                                            reduce_dtype_.value_or(first.scalar_type()))),
                    .own = {},
                    .work = {}};
  // Divided before the sum, which could overflow; in the same way as by LibTorch's Reducer, so that the bits are equal.
  const Tensor share = at::native::wrapped_scalar_tensor(1.0 / static_cast<double>(groups_.whole().place().world_size));
  for (size_t i = 0; i < parameters.size(); ++i) {
    Tensor& gradient = parameters[i].value.mutable_grad();
    if (!gradient.defined()) continue;
    if (gradient.layout() != at::kStrided)
      throw ConfigError(cat("[strategies.fsdp] gradients must be dense; that of '", escape_controls(parameters[i].name),
                            "' is sparse. Use sparse: false in its layer, or strategy: ddp."));
    Tensor place = flat.whole(i, exchange.buffer);
    at::mul_out(place, gradient, share);
    gradient.reset();
  }
  if (on_their_way_.size() > 1) finish_first();
  run_exchange(groups_.whole(), "fsdp",
               [&] { std::tie(exchange.own, exchange.work) = groups_.parts().start_sum_of_parts(exchange.buffer); });
  on_their_way_.push_back(std::move(exchange));
}

void GradientShards::finish_first() {
  const at::NoGradGuard no_grad;
  Exchange exchange = std::move(on_their_way_.front());
  on_their_way_.pop_front();
  run_exchange(groups_.whole(), "fsdp", [&] { exchange.work->wait(); });
  const FlatUnit& flat = *shards_.units()[exchange.unit];
  const at::ScalarType dtype = flat.parameters().front().value.scalar_type();
  // A copy of this rank's part alone: the buffer is freed.
  Tensor own = exchange.own;
  if (own.scalar_type() != dtype)
    own = own.to(dtype);
  else if (own.is_alias_of(exchange.buffer))
    own = own.clone();
  if (auto* const copies = groups_.copies()) own = copies->all_reduce(own, ReduceOp::sum);
  for (size_t i = 0; i < exchange.has_gradient.size(); ++i) {
    if (!exchange.has_gradient[i]) continue;
    Tensor& gradient = shards_.shard(exchange.unit, i).mutable_grad();
    const Tensor now = flat.own_elements_of_part(i, own);
    if (gradient.defined())
      gradient.add_(now);
    else
      gradient = now;
  }
}

void GradientShards::finish() {
  while (!on_their_way_.empty()) finish_first();
}

void GradientShards::average(const Optimizer& optimizer) {
  std::vector<int64_t> flags;
  std::vector<std::vector<size_t>> flags_of(shards_.units().size());  // of each parameter of the unit
  for (const ParamGroup& group : optimizer.groups())
    for (const Tensor& parameter : group.of_module()) {
      const auto [unit, index] = shards_.place_of(parameter);
      flags_of[unit].resize(shards_.units()[unit]->parameters().size());
      flags_of[unit][index] = flags.size();
      flags.push_back(parameter.grad().defined() ? 1 : 0);
    }
  if (flags.empty()) return;
  const Tensor anywhere = groups_.whole().collectives().all_reduce(at::tensor(flags, at::kLong), ReduceOp::max);
  for (size_t unit = 0; unit < flags_of.size(); ++unit) {
    std::vector<uint8_t> has_gradient;
    for (const size_t flag : flags_of[unit])
      has_gradient.push_back(anywhere.const_data_ptr<int64_t>()[flag] != 0 ? 1 : 0);
    if (std::ranges::find(has_gradient, 1) != has_gradient.end()) start(unit, std::move(has_gradient));
  }
  finish();
}

}  // namespace fulgur::detail
