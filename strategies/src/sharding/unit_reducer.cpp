#include "sharding/unit_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <map>
#include <utility>

#include "distributed/process_group_impl.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

UnitReducer::UnitReducer(ShardGroups& groups, DividedUnits& shards, std::vector<NamedParameter> parameters,
                         std::optional<at::ScalarType> reduce_dtype, std::optional<bool> find_unused)
    : GradientExchange(std::move(parameters)),
      groups_(groups),
      shards_(shards),
      gradients_(groups, shards, reduce_dtype),
      has_option_(find_unused.has_value()),
      find_unused_(find_unused.value_or(false)),
      order_(0) {
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
    hooks_.push_back(std::make_unique<GradientHook>(
        parameter.value, [this, unit = found->second, place = index] { take(unit, place); }));
  }
  order_ = ArrivalOrder(units_.size());
}

UnitReducer::~UnitReducer() = default;

void UnitReducer::before_backward(const Tensor& /*loss*/) {
  gradients_.drop();
  for (Unit& unit : units_) {
    unit.awaited = unit.wanted;
    unit.missing = static_cast<size_t>(std::ranges::count(unit.wanted, 1));
  }
  order_.begin();
  active_ = true;
}

void UnitReducer::take(size_t index, size_t parameter) {
  if (!active_) return;
  Unit& unit = units_[index];
  if (!std::exchange(unit.awaited[parameter], 0))
    throw DistributedError(
        cat("[strategies.", groups_.strategy(), "] '",
            escape_controls(shards_.units()[unit.number]->parameters()[parameter].name),
            "' got its gradient twice in one backward, after the first one was exchanged. A layer that computes its "
            "backward inside another backward must not share parameters; ",
            has_option_ ? "use sharding: optimizer." : "set mesh.shard to 1."));
  if (--unit.missing > 0) return;
  order_.arrive(index, [this](size_t complete) {
    // With unused parameters, ranks differ in which units are complete.
    if (!find_unused_) gradients_.start(units_[complete].number, units_[complete].wanted);
  });
}

void UnitReducer::after_backward() {
  active_ = false;
  if (find_unused_) {
    // The others may have gradients that this rank has not.
    std::vector<int64_t> got;
    for (const Unit& unit : units_)
      for (size_t i = 0; i < unit.wanted.size(); ++i) got.push_back(unit.wanted[i] && !unit.awaited[i] ? 1 : 0);
    const Tensor anywhere = groups_.max_over_shares(at::tensor(got, at::kLong));
    std::vector<std::vector<uint8_t>> has_gradient;
    const int64_t* flag = anywhere.const_data_ptr<int64_t>();
    for (const Unit& unit : units_) {
      auto& of_unit = has_gradient.emplace_back();
      for (size_t i = 0; i < unit.wanted.size(); ++i) of_unit.push_back(*flag++ != 0 ? 1 : 0);
    }
    order_.for_each([&](size_t index) {
      if (std::ranges::find(has_gradient[index], 1) != has_gradient[index].end())
        gradients_.start(units_[index].number, has_gradient[index]);
    });
  } else if (const std::vector<std::string> missing = without_gradient(); !missing.empty()) {
    throw no_gradient_error(missing, groups_.whole().place().rank, groups_.strategy(), has_option_);
  } else {
    order_.start_rest([this](size_t index) { gradients_.start(units_[index].number, units_[index].wanted); });
  }
  gradients_.end();
  order_.learn([this](const Tensor& order) { return groups_.of_first_share(order); });
}

std::vector<std::string> UnitReducer::without_gradient() const {
  std::vector<std::string> names;
  for (const Unit& unit : units_)
    for (size_t i = 0; i < unit.awaited.size(); ++i) {
      const auto& [name, value] = shards_.units()[unit.number]->parameters()[i];
      // An earlier backward of the window may have given it, which is enough for a mesh.
      if (unit.awaited[i] && (has_option_ || !value.grad().defined())) names.push_back(escape_controls(name));
    }
  return names;
}

}  // namespace fulgur::detail
