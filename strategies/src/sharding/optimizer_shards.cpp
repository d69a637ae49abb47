#include "sharding/optimizer_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "distributed/process_group_impl.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "sharding/parameter_units.h"
#include "sharding/step_count.h"

namespace fulgur::detail {
namespace {

void check_optimizer(const Optimizer& optimizer) {
  if (!optimizer.is_elementwise())
    throw ConfigError(
        cat("[strategies.fsdp] each element of a parameter must be stepped independently of the others, "
            "since each rank has only some of them; ",
            optimizer.name(),
            " needs whole parameters. Use AdamW, Adam, SGD, RMSprop, Adagrad or Lion, "
            "or strategy: ddp."));
  for (const ParamGroup& group : optimizer.groups())
    if (!group.module_params.empty())
      throw ConfigError(
          "[strategies.fsdp] float32 copies of the weights cannot be divided among ranks yet. Use precision: "
          "bf16-mixed or 32-true, master_weights: false, or strategy: ddp.");
}

// Consecutive elements of stored values, as a vector.
class StoredRange final : public StoredValues {
 public:
  StoredRange(c10::intrusive_ptr<StoredValues> of, int64_t begin, int64_t count)
      : of_(std::move(of)), begin_(begin), count_(count) {}
  Tensor read() const override { return of_->read_range(begin_, count_); }

 private:
  c10::intrusive_ptr<StoredValues> of_;
  int64_t begin_, count_;
};

// Elements of `whole`, in the order of a parameter's memory.
Tensor range_of(const Tensor& whole, const Tensor& parameter, int64_t begin, int64_t count) {
  const bool same_order = whole.strides() == parameter.strides();
  if (auto values = stored_values(whole); values && same_order)
    return stand_in(at::empty({count}, whole.options()),
                    c10::make_intrusive<StoredRange>(std::move(values), begin, count));
  Tensor ordered = read_now(whole);
  if (!same_order)
    ordered = at::empty_strided(parameter.sizes(), parameter.strides(), ordered.options()).copy_(ordered);
  return in_memory_order(ordered).narrow(0, begin, count).clone();
}

// Callbacks and schedules may have changed the rates since the state was loaded.
StateTree with_rates_of(const Optimizer& optimizer, StateTree state) {
  StateTree::List& groups = state["groups"].as_list();
  for (size_t g = 0; g < groups.size() && g < optimizer.groups().size(); ++g) {
    groups[g]["lr"] = optimizer.groups()[g].lr;
    groups[g]["initial_lr"] = optimizer.groups()[g].initial_lr;
  }
  return state;
}

}  // namespace

OptimizerShards::OptimizerShards(const LightningModule& module, const std::vector<Optimizer*>& optimizers,
                                 const std::optional<std::vector<std::string>>& patterns, ShardGroups& groups,
                                 Divided divided, at::Device device, const std::function<void(FlatUnit&)>& on_unit,
                                 const LoadedStates& loaded)
    : groups_(groups), divided_(divided), device_(device) {
  std::map<const void*, size_t> stepped;  // by which optimizer
  for (size_t i = 0; i < optimizers.size(); ++i) {
    check_optimizer(*optimizers[i]);
    for (const ParamGroup& each : optimizers[i]->groups())
      for (const Tensor& parameter : each.params) stepped.emplace(parameter.unsafeGetTensorImpl(), i);
  }
  std::vector<NamedParameter> parameters = unique_parameters(module);
  if (!divided.parameters)
    std::erase_if(parameters, [&](const auto& each) { return !stepped.contains(each.value.unsafeGetTensorImpl()); });
  const auto optimizer_of = [&](const Tensor& parameter) {
    const auto found = stepped.find(parameter.unsafeGetTensorImpl());
    return found == stepped.end() ? optimizers.size() : found->second;
  };
  for (ParameterUnit& unit : parameter_units(module, parameters, patterns)) {
    // Frozen parameters have no state: each rank gets its part of those that learn.
    std::map<std::tuple<size_t, at::ScalarType, bool>, std::vector<NamedParameter>> alike;
    for (NamedParameter& parameter : unit.parameters) {
      const Tensor& value = parameter.value;
      alike[{optimizer_of(value), value.scalar_type(), value.requires_grad()}].push_back(std::move(parameter));
    }
    for (auto& [kind, members] : alike) {
      for (size_t i = 0; i < members.size(); ++i)
        places_.emplace(members[i].value.unsafeGetTensorImpl(), Place{units_.size(), i});
      shards_.emplace_back(members.size());
      units_.push_back(
          std::make_unique<FlatUnit>(std::move(members), device, groups.parts().rank(), groups.parts().world_size()));
      if (divided.parameters) units_.back()->keep_part();
      on_unit(*units_.back());
    }
  }
  for (Optimizer* optimizer : optimizers) {
    const auto waits = loaded.find(optimizer);
    const StateTree state = waits == loaded.end() ? optimizer->state() : with_rates_of(*optimizer, waits->second);
    std::function<Tensor(const Tensor&)> sum_over_ranks;
    if (divided.gradients)
      sum_over_ranks = [&groups](const Tensor& value) { return groups.parts().all_reduce(value, ReduceOp::sum); };
    const auto shard_of = [&](const std::string& name, const Tensor& parameter) {
      const auto found = places_.find(parameter.unsafeGetTensorImpl());
      if (found == places_.end())
        throw ConfigError(cat("[strategies.fsdp] ", optimizer->name(), " steps '", escape_controls(name),
                              "', which is not a parameter of the module. Register it, or use strategy: ddp."));
      const auto [unit, index] = found->second;
      return shards_[unit][index] = units_[unit]->own_elements(index).detach().set_requires_grad(true);
    };
    optimizer->step_shards(shard_of, sum_over_ranks);
    load_state(*optimizer, state);
  }
}

OptimizerShards::~OptimizerShards() {
  for (const auto& unit : units_) unit->release(device_);
}

void OptimizerShards::take_gradients(Optimizer& optimizer) const {
  for (ParamGroup& group : optimizer.groups())
    for (size_t i = 0; i < group.params.size(); ++i) {
      const Tensor& parameter = group.module_params[i];
      Tensor gradient = parameter.grad();
      Tensor& own = group.params[i].mutable_grad();
      if (!gradient.defined()) {
        own = Tensor();
        continue;
      }
      if (gradient.layout() != at::kStrided)
        throw ConfigError(cat("[strategies.fsdp] gradients must be dense; that of '", escape_controls(group.names[i]),
                              "' is sparse. Use sparse: false in its layer, or strategy: ddp."));
      if (gradient.strides() != parameter.strides())
        gradient = at::empty_strided(parameter.sizes(), parameter.strides(), gradient.options()).copy_(gradient);
      const Place& place = place_of(parameter);
      const auto [begin, count] = units_[place.unit]->own_range(place.index);
      own = in_memory_order(gradient).narrow(0, begin, count);
    }
}

void OptimizerShards::drop_gradients(Optimizer& optimizer) const noexcept {
  for (ParamGroup& group : optimizer.groups())
    for (Tensor& shard : group.params) shard.unsafeGetTensorImpl()->mutable_grad().reset();
}

std::vector<size_t> OptimizerShards::changed_units(const Optimizer& optimizer) const {
  std::set<size_t> units;
  for (const ParamGroup& group : optimizer.groups())
    for (size_t i = 0; i < group.params.size(); ++i)
      // Shards have gradients now, whole or divided; those of parameters whose part here is empty too.
      if (group.params[i].grad().defined()) units.insert(place_of(group.module_params[i]).unit);
  return {units.begin(), units.end()};
}

void OptimizerShards::gather_parameters(const Optimizer& optimizer) const {
  const at::NoGradGuard no_grad;
  if (!divided_.parameters)
    run_exchange(groups_.whole(), "fsdp", [&] {
      std::vector<c10::intrusive_ptr<c10d::Work>> works;
      for (const size_t unit : changed_units(optimizer))
        works.push_back(groups_.parts().start_gather(units_[unit]->buffer()));
      for (const auto& work : works) work->wait();
    });
  // Autograd and late copies compare versions; the shards have others than the parameters: a graph of before the step
  // cannot be used.
  for (const ParamGroup& group : optimizer.groups())
    for (const Tensor& parameter : group.module_params) parameter.unsafeGetTensorImpl()->bump_version();
}

StateTree OptimizerShards::state(const Optimizer& optimizer) const {
  const at::NoGradGuard no_grad;
  StateTree state = optimizer.state();
  // The places of the entries that are divided, by unit and name: `exp_avg` of the parameters that have one.
  struct Entry {
    std::string parameter;
    size_t index;
  };
  std::map<std::pair<size_t, std::string>, std::vector<Entry>> divided;
  StateTree& of_parameters = state["state"];
  for (const ParamGroup& group : optimizer.groups())
    for (size_t i = 0; i < group.params.size(); ++i) {
      const Place& place = place_of(group.module_params[i]);
      for (const auto& [name, value] : of_parameters.at(group.names[i]).as_map())
        if (name != kStepCount) divided[{place.unit, name}].push_back({group.names[i], place.index});
    }
  for (const auto& [key, entries] : divided) {
    const FlatUnit& unit = *units_[key.first];
    const auto value_of = [&](const Entry& entry) { return of_parameters.at(entry.parameter).at(key.second).tensor(); };
    const Tensor buffer = at::zeros(unit.buffer().sizes(), value_of(entries.front()).options().requires_grad(false));
    for (const Entry& entry : entries) unit.own_elements(entry.index, buffer).copy_(value_of(entry));
    run_exchange(groups_.whole(), "fsdp", [&] { groups_.parts().start_gather(buffer)->wait(); });
    if (groups_.whole().place().rank == 0)
      for (const Entry& entry : entries)
        of_parameters[entry.parameter][key.second] =
            unit.whole(entry.index, buffer).clone(at::MemoryFormat::Contiguous);
  }
  return groups_.whole().place().rank == 0 ? state : StateTree(nullptr);
}

TensorPart OptimizerShards::as_part(size_t unit, size_t index, const Tensor& elements) const {
  const FlatUnit& flat = *units_[unit];
  const Tensor& parameter = flat.parameters()[index].value;
  const bool writes = !groups_.copies() || groups_.copies()->rank() == 0;
  return {.whole = at::empty_strided(parameter.sizes(), parameter.strides(),
                                     elements.options().device(at::kMeta).requires_grad(false)),
          .begin = flat.own_range(index).begin,
          .values = writes ? elements : elements.narrow(0, 0, 0)};
}

TensorPart OptimizerShards::part_of(size_t unit, size_t index, bool are_there) const {
  const FlatUnit& flat = *units_[unit];
  return as_part(unit, index, are_there ? flat.own_elements(index, flat.buffer()) : flat.own_elements(index));
}

StateTree OptimizerShards::state_in_parts(const Optimizer& optimizer, std::vector<TensorPart>& parts) const {
  StateTree state = optimizer.state();
  StateTree& of_parameters = state["state"];
  for (const ParamGroup& group : optimizer.groups())
    for (size_t i = 0; i < group.params.size(); ++i) {
      const auto [unit, index] = place_of(group.module_params[i]);
      for (auto& [name, value] : of_parameters[group.names[i]].as_map()) {
        if (name == kStepCount) continue;
        const TensorPart& part = parts.emplace_back(as_part(unit, index, value.tensor()));
        value = StateTree(part.whole);
      }
    }
  return state;
}

StateTree OptimizerShards::own_part(const Optimizer& optimizer, const StateTree& state) const {
  StateTree own = state;
  StateTree& of_parameters = own["state"];
  for (const ParamGroup& group : optimizer.groups())
    for (size_t i = 0; i < group.names.size(); ++i) {
      // `load_state` of the optimizer reports parameters that are missing.
      if (!of_parameters.contains(group.names[i])) continue;
      const Tensor& parameter = group.module_params[i];
      const Place& place = place_of(parameter);
      const auto [begin, count] = units_[place.unit]->own_range(place.index);
      StateTree::Map entries = of_parameters.at(group.names[i]).as_map();
      for (auto& [name, value] : entries) {
        if (name == kStepCount || !value.is_tensor()) continue;
        const Tensor& whole = value.tensor();
        if (whole.sizes() != parameter.sizes())
          throw CheckpointError(cat("[strategies.fsdp] the optimizer state does not fit the parameters: ", name,
                                    " of '", escape_controls(group.names[i]), "' has shape ", shape_text(whole.sizes()),
                                    " in the checkpoint, the parameter ", shape_text(parameter.sizes()), "."));
        value = range_of(whole, parameter, begin, count);
      }
      of_parameters[group.names[i]] = std::move(entries);
    }
  return own;
}

void OptimizerShards::load_state(Optimizer& optimizer, const StateTree& state) const {
  const at::NoGradGuard no_grad;
  optimizer.load_state(own_part(optimizer, state));
}

}  // namespace fulgur::detail
