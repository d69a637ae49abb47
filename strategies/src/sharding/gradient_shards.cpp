#include "sharding/gradient_shards.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tensor.h>

#include <utility>

#include "distributed/process_group_impl.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

void GradientShards::start(size_t unit, const std::vector<uint8_t>& has_gradient) {
  const at::NoGradGuard no_grad;
  // Before the next buffer is made, so that there is one at a time.
  finish();
  Exchange exchange{
      .unit = unit, .has_gradient = has_gradient, .buffer = take_gradients(unit, has_gradient), .own = {}, .work = {}};
  run_exchange(groups_.whole(), groups_.strategy(),
               [&] { std::tie(exchange.own, exchange.work) = groups_.parts().start_sum_of_parts(exchange.buffer); });
  on_its_way_ = std::move(exchange);
}

Tensor GradientShards::take_gradients(size_t unit, const std::vector<uint8_t>& has_gradient) {
  const FlatUnit& flat = *shards_.units()[unit];
  const at::ScalarType own_dtype = flat.parameters().front().value.scalar_type(),
                       dtype = reduce_dtype_.value_or(own_dtype);
  // What is between the parameters is sent, and never read.
  Tensor buffer = at::empty({flat.numel()}, flat.buffer().options().dtype(dtype));
  std::vector<Tensor> places, gradients;
  for (size_t i = 0; i < flat.parameters().size(); ++i) {
    const auto& [name, parameter] = flat.parameters()[i];
    const Tensor place = flat.whole(i, buffer);
    if (!has_gradient[i] || !parameter.grad().defined()) {
      place.zero_();
      continue;
    }
    if (parameter.grad().layout() != at::kStrided)
      throw ConfigError(cat("[strategies.", groups_.strategy(), "] gradients must be dense; that of '",
                            escape_controls(name), "' is sparse. Use sparse: false in its layer, or strategy: ddp."));
    places.push_back(place);
    gradients.push_back(parameter.grad());
  }
  // Divided before the sum, which could overflow, and before a conversion. The bits are those of LibTorch's Reducer.
  const double share = 1.0 / static_cast<double>(groups_.shares());
  if (dtype == own_dtype) {
    if (!places.empty()) at::_foreach_copy_(places, gradients);
    buffer.mul_(share);
  } else {
    for (size_t i = 0; i < places.size(); ++i)
      at::mul_out(places[i], gradients[i], at::native::wrapped_scalar_tensor(share));
  }
  for (size_t i = 0; i < flat.parameters().size(); ++i)
    if (has_gradient[i]) flat.parameters()[i].value.unsafeGetTensorImpl()->mutable_grad().reset();
  return buffer;
}

void GradientShards::finish() {
  if (!on_its_way_) return;
  const at::NoGradGuard no_grad;
  const Exchange exchange = *std::exchange(on_its_way_, std::nullopt);
  run_exchange(groups_.whole(), groups_.strategy(), [&] { exchange.work->wait(); });
  const FlatUnit& flat = *shards_.units()[exchange.unit];
  // What optimizers step may be float32 copies of weights in half precision.
  const auto with_gradient = std::ranges::find(exchange.has_gradient, 1) - exchange.has_gradient.begin();
  const at::ScalarType dtype = shards_.shard(exchange.unit, static_cast<size_t>(with_gradient)).scalar_type();
  // A copy of this rank's part alone: the buffer is freed.
  Tensor own = exchange.own;
  if (own.scalar_type() != dtype)
    own = own.to(dtype);
  else if (own.is_alias_of(exchange.buffer))
    own = own.clone();
  if (auto* const copies = groups_.copies()) own = copies->all_reduce(own, ReduceOp::sum);
  own = shards_.place_gradients(exchange.unit, own);
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

void GradientShards::end() {
  finish();
  shards_.await_gradients();
}

void GradientShards::average(const std::vector<Tensor>& parameters, bool may_be_missing) {
  std::vector<int64_t> flags;
  // Of each parameter of the unit; nullopt: it is not one of `parameters`.
  std::vector<std::vector<std::optional<size_t>>> flags_of(shards_.units().size());
  for (const Tensor& parameter : parameters) {
    const auto [unit, index] = shards_.place_of(parameter);
    flags_of[unit].resize(shards_.units()[unit]->parameters().size());
    flags_of[unit][index] = flags.size();
    flags.push_back(parameter.grad().defined() ? 1 : 0);
  }
  if (flags.empty()) return;
  Tensor anywhere = at::tensor(flags, at::kLong);
  if (may_be_missing) anywhere = groups_.max_over_shares(anywhere);
  for (size_t unit = 0; unit < flags_of.size(); ++unit) {
    std::vector<uint8_t> has_gradient;
    for (const std::optional<size_t>& flag : flags_of[unit])
      has_gradient.push_back(flag && anywhere.const_data_ptr<int64_t>()[*flag] != 0 ? 1 : 0);
    if (std::ranges::find(has_gradient, 1) != has_gradient.end()) start(unit, has_gradient);
  }
  end();
}

}  // namespace fulgur::detail
