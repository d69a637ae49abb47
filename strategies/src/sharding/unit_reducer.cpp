#include "sharding/unit_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <numeric>
#include <utility>

#include "distributed/process_group_impl.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

// Called when a parameter's gradient is accumulated. The parameter holds its accumulator weakly.
struct UnitReducer::Hook {
  Hook(const Tensor& parameter, std::function<void()> then)
      : accumulator(torch::autograd::impl::grad_accumulator(parameter)) {
    key = accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [then = std::move(then)](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
          then();
          return outputs;
        }));
  }
  ~Hook() { accumulator->del_post_hook(key); }
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

  std::shared_ptr<torch::autograd::Node> accumulator;
  uintptr_t key;
};

UnitReducer::UnitReducer(ShardGroups& groups, DividedUnits& shards, std::vector<NamedParameter> parameters,
                         std::optional<at::ScalarType> reduce_dtype, bool find_unused)
    : GradientExchange(std::move(parameters)),
      groups_(groups),
      shards_(shards),
      gradients_(groups, shards, reduce_dtype),
      find_unused_(find_unused) {
  std::map<size_t, size_t> known;  // by the number in the shards
  for (const NamedParameter& parameter : this->parameters()) {
    // The strategy has checked that each parameter which learns belongs to an optimizer.
    const auto [number, index] = shards.place_of(parameter.value);
    const auto [found, is_new] = known.emplace(number, units_.size());
    if (is_new) {
      const size_t count = shards.units()[number]->parameters().size();
      units_.push_back({.number = number, .awaited = {}, .missing = 0, .wanted = std::vector<uint8_t>(count)});
    }
    units_[found->second].wanted[index] = 1;
    hooks_.push_back(
        std::make_unique<Hook>(parameter.value, [this, unit = found->second, place = index] { take(unit, place); }));
  }
  // Backward usually begins with the last layers.
  order_.resize(units_.size());
  std::iota(order_.rbegin(), order_.rend(), size_t{0});
}

UnitReducer::~UnitReducer() = default;

void UnitReducer::before_backward(const Tensor& /*loss*/) {
  gradients_.drop();
  for (Unit& unit : units_) {
    unit.awaited = unit.wanted;
    unit.missing = static_cast<size_t>(std::ranges::count(unit.wanted, 1));
  }
  arrived_.clear();
  next_ = 0;
  active_ = true;
}

void UnitReducer::take(size_t index, size_t parameter) {
  if (!active_) return;
  Unit& unit = units_[index];
  if (!std::exchange(unit.awaited[parameter], 0))
    throw DistributedError(
        cat("[strategies.fsdp] '", escape_controls(shards_.units()[unit.number]->parameters()[parameter].name),
            "' got its gradient twice in one backward, after the first one was exchanged. A layer that computes its "
            "backward inside another backward must not share parameters; use sharding: optimizer."));
  if (--unit.missing > 0) return;
  arrived_.push_back(index);
  // With unused parameters, ranks differ in which units are complete.
  while (!find_unused_ && next_ < order_.size() && units_[order_[next_]].missing == 0) start_next();
}

void UnitReducer::start_next() {
  const Unit& unit = units_[order_[next_++]];
  gradients_.start(unit.number, unit.wanted);
}

void UnitReducer::after_backward() {
  active_ = false;
  if (find_unused_) {
    // The others may have gradients that this rank has not.
    std::vector<int64_t> got;
    for (const Unit& unit : units_)
      for (size_t i = 0; i < unit.wanted.size(); ++i) got.push_back(unit.wanted[i] && !unit.awaited[i] ? 1 : 0);
    const Tensor anywhere = groups_.whole().collectives().all_reduce(at::tensor(got, at::kLong), ReduceOp::max);
    std::vector<std::vector<uint8_t>> has_gradient;
    const int64_t* flag = anywhere.const_data_ptr<int64_t>();
    for (const Unit& unit : units_) {
      auto& of_unit = has_gradient.emplace_back();
      for (size_t i = 0; i < unit.wanted.size(); ++i) of_unit.push_back(*flag++ != 0 ? 1 : 0);
    }
    while (next_ < order_.size()) {
      const size_t index = order_[next_++];
      if (std::ranges::find(has_gradient[index], 1) != has_gradient[index].end())
        gradients_.start(units_[index].number, has_gradient[index]);
    }
  } else if (const std::vector<std::string> missing = without_gradient(); !missing.empty()) {
    throw no_gradient_error(missing, groups_.whole().place().rank, "fsdp");
  }
  gradients_.end();
  if (!std::exchange(knows_order_, true)) learn_order();
}

std::vector<std::string> UnitReducer::without_gradient() const {
  std::vector<std::string> names;
  for (const Unit& unit : units_)
    for (size_t i = 0; i < unit.awaited.size(); ++i)
      if (unit.awaited[i]) names.push_back(escape_controls(shards_.units()[unit.number]->parameters()[i].name));
  return names;
}

void UnitReducer::learn_order() {
  if (order_.size() < 2) return;
  std::vector<int64_t> order(arrived_.begin(), arrived_.end());
  // Units without gradients come last.
  for (const size_t unit : order_)
    if (std::ranges::find(arrived_, unit) == arrived_.end()) order.push_back(static_cast<int64_t>(unit));
  const Tensor of_rank_0 = groups_.whole().collectives().broadcast(at::tensor(order, at::kLong), 0);
  const int64_t* index = of_rank_0.const_data_ptr<int64_t>();
  for (size_t& unit : order_) unit = static_cast<size_t>(*index++);
}

}  // namespace fulgur::detail
