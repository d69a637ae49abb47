#include "sharding/optimizer_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <set>
#include <utility>

#include "distributed/process_group_impl.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "sharding/first_rank_values.h"
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
          "[strategies.fsdp] the precision has made copies of the weights, which cannot be divided among ranks: only "
          "those of bf16-true and 16-true can. Use one of them, or strategy: ddp.");
}

std::vector<NamedParameter> parameters_to_divide(const LightningModule& module,
                                                 const std::vector<Optimizer*>& optimizers, bool all) {
  std::set<const void*> stepped;
  for (const Optimizer* optimizer : optimizers) {
    check_optimizer(*optimizer);
    for (const ParamGroup& group : optimizer->groups())
      for (const Tensor& parameter : group.params) stepped.insert(parameter.unsafeGetTensorImpl());
  }
  std::vector<NamedParameter> parameters = unique_parameters(module);
  if (!all)
    std::erase_if(parameters, [&](const auto& each) { return !stepped.contains(each.value.unsafeGetTensorImpl()); });
  return parameters;
}

}  // namespace

bool take_rates(Optimizer& optimizer, const StateTree& state) {
  const StateTree::List& groups = state.at("groups").as_list();
  if (groups.size() != optimizer.groups().size()) return false;
  for (size_t g = 0; g < groups.size(); ++g) {
    optimizer.groups()[g].lr = groups[g].at("lr").as_double();
    optimizer.groups()[g].initial_lr = groups[g].at("initial_lr").as_double();
  }
  return true;
}

SteppedParts::Copies take_copies(MasterWeights& masters, const std::vector<Optimizer*>& optimizers,
                                 std::map<const Optimizer*, StateTree>& states) {
  SteppedParts::Copies copies;
  for (Optimizer* optimizer : optimizers) {
    if (!states.contains(optimizer)) states.emplace(optimizer, optimizer->state());
    copies.merge(masters.hand_over(*optimizer));
  }
  return copies;
}

StateTree with_rates_of(const Optimizer& optimizer, StateTree state) {
  StateTree::List& groups = state["groups"].as_list();
  for (size_t g = 0; g < groups.size() && g < optimizer.groups().size(); ++g) {
    groups[g]["lr"] = optimizer.groups()[g].lr;
    groups[g]["initial_lr"] = optimizer.groups()[g].initial_lr;
  }
  return state;
}

OptimizerShards::OptimizerShards(const LightningModule& module, const std::vector<Optimizer*>& optimizers,
                                 const std::optional<std::vector<std::string>>& patterns, ShardGroups& groups,
                                 const Divided& divided, at::Device device,
                                 const std::function<void(FlatUnit&)>& on_unit, const LoadedStates& loaded)
    : DividedUnits(module, parameters_to_divide(module, optimizers, divided.parameters), optimizers, groups, device,
                   {.patterns = patterns, .keep_parts = divided.parameters, .on_unit = on_unit}),
      divides_parameters_(divided.parameters) {
  const bool in_host_memory = divided.in_host_memory && !device.is_cpu();
  if (in_host_memory || !divided.masters.empty()) {
    std::vector<bool> is_stepped(units().size());
    for (const Optimizer* optimizer : optimizers)
      for (const ParamGroup& group : optimizer->groups())
        for (const Tensor& parameter : group.params)
          if (has(parameter)) is_stepped[place_of(parameter).unit] = true;
    stepped_.emplace(units(), divided.masters, is_stepped, in_host_memory, device,
                     [&](const Tensor& copy) { return values_of_first_rank(groups.whole(), "fsdp", copy, device); });
  }
  for (Optimizer* optimizer : optimizers) {
    const auto waits = loaded.find(optimizer);
    const StateTree state = waits == loaded.end() ? optimizer->state() : with_rates_of(*optimizer, waits->second);
    std::function<Tensor(const Tensor&)> sum_over_ranks;
    if (divided.gradients)
      sum_over_ranks = [&groups](const Tensor& value) { return groups.parts().all_reduce(value, ReduceOp::sum); };
    optimizer->step_shards(
        [&](const std::string& name, const Tensor& parameter) { return shard_of(*optimizer, name, parameter); },
        sum_over_ranks);
    load_state(*optimizer, state);
  }
}

Tensor OptimizerShards::shard_of(const Optimizer& optimizer, const std::string& name, const Tensor& parameter) {
  if (!has(parameter))
    throw ConfigError(cat("[strategies.fsdp] ", optimizer.name(), " steps '", escape_controls(name),
                          "', which is not a parameter of the module. Register it, or use strategy: ddp."));
  const auto [unit, index] = place_of(parameter);
  if (!has_stepped(unit)) return make_shard(parameter);
  if (stepped_->is_master(unit)) with_masters_.emplace(name, parameter);
  return shard(unit, index) = stepped_->own_elements(unit, index).detach().set_requires_grad(true);
}

Tensor OptimizerShards::place_gradients(size_t unit, const Tensor& averages) {
  if (!in_host_memory() || !has_stepped(unit)) return averages;
  // Those of a backward before this one have the place.
  for (size_t i = 0; i < units()[unit]->parameters().size(); ++i)
    if (const Tensor& own = shard(unit, i); own.defined() && own.grad().defined()) return averages.cpu();
  return stepped_->take_gradients(unit, averages);
}

void OptimizerShards::await_gradients() {
  if (stepped_) stepped_->wait();
}

void OptimizerShards::take_gradients(Optimizer& optimizer) {
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
      const auto [begin, count] = units()[place.unit]->own_range(place.index);
      own = in_memory_order(gradient).narrow(0, begin, count).to(group.params[i].scalar_type());
      if (in_host_memory() && has_stepped(place.unit))
        own = stepped_->gradient_place(place.unit, place.index).copy_(own, /*non_blocking=*/true);
    }
  await_gradients();
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

void OptimizerShards::before_step(const Optimizer& optimizer) {
  if (!in_host_memory()) return;
  // The device may be reading the values of the step before.
  stepped_->wait();
  stepped_->take_changed_values(changed_units(optimizer));
}

void OptimizerShards::gather_parameters(const Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  const std::vector<size_t> changed = changed_units(optimizer);
  // The precision has written those with float32 copies.
  for (const size_t unit : changed)
    if (has_stepped(unit) && !stepped_->is_master(unit)) stepped_->write_back(unit);
  if (!divides_parameters_)
    run_exchange(groups().whole(), "fsdp", [&] {
      std::vector<c10::intrusive_ptr<c10d::Work>> works;
      for (const size_t unit : changed) works.push_back(groups().parts().start_gather(units()[unit]->buffer()));
      for (const auto& work : works) work->wait();
    });
  // Autograd and late copies compare versions; the shards have others than the parameters: a graph of before the step
  // cannot be used.
  for (const ParamGroup& group : optimizer.groups())
    for (const Tensor& parameter : group.module_params) parameter.unsafeGetTensorImpl()->bump_version();
}

StateTree OptimizerShards::state(const Optimizer& optimizer) const {
  StateTree state = optimizer.state();
  const bool is_first = groups().whole().place().rank == 0;
  join_states(optimizer, state["state"], is_first);
  return is_first ? state : StateTree(nullptr);
}

void OptimizerShards::write_back(Optimizer& optimizer) {
  for (const size_t unit : changed_units(optimizer))
    if (has_stepped(unit) && stepped_->is_master(unit)) stepped_->write_back(unit);
}

StateTree OptimizerShards::state() const {
  StateTree whole;
  std::map<size_t, Tensor> gathered;  // by unit
  const bool is_first = groups().whole().place().rank == 0;
  for (size_t unit = 0; unit < units().size(); ++unit) {
    if (!has_stepped(unit) || !stepped_->is_master(unit)) continue;
    const Tensor buffer = stepped_->gather(unit, groups());
    if (is_first) gathered.emplace(unit, buffer);
  }
  if (!is_first) return whole;
  for (const auto& [name, parameter] : with_masters_) {
    const auto [unit, index] = place_of(parameter);
    whole[name] = units()[unit]->whole(index, gathered.at(unit)).clone(at::MemoryFormat::Contiguous);
  }
  return whole;
}

StateTree OptimizerShards::state_in_parts(std::vector<TensorPart>& parts) const {
  StateTree state;
  for (const auto& [name, parameter] : with_masters_) {
    const auto [unit, index] = place_of(parameter);
    state[name] = parts.emplace_back(as_part(unit, index, stepped_->own_elements(unit, index))).whole;
  }
  return state;
}

void OptimizerShards::load_state(const StateTree& state) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (const auto& [name, parameter] : with_masters_) {
    if (!state.contains(name)) continue;
    const auto [unit, index] = place_of(parameter);
    copies.emplace_back(stepped_->own_elements(unit, index),
                        own_elements(name, parameter, "the float32 copy", state.at(name).tensor()));
  }
  await_gradients();
  for (auto& [part, values] : copies) assign_values(part, values);
}

TensorPart OptimizerShards::as_part(size_t unit, size_t index, const Tensor& elements) const {
  const FlatUnit& flat = *units()[unit];
  const Tensor& parameter = flat.parameters()[index].value;
  const bool writes = !groups().copies() || groups().copies()->rank() == 0;
  return {.whole = at::empty_strided(parameter.sizes(), parameter.strides(),
                                     elements.options().device(at::kMeta).requires_grad(false)),
          .begin = flat.own_range(index).begin,
          .values = writes ? elements : elements.narrow(0, 0, 0)};
}

TensorPart OptimizerShards::part_of(size_t unit, size_t index, bool are_there) const {
  const FlatUnit& flat = *units()[unit];
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
      StateTree::Map entries = of_parameters.at(group.names[i]).as_map();
      for (auto& [name, value] : entries)
        if (name != kStepCount && value.is_tensor())
          value = own_elements(group.names[i], group.module_params[i], name, value.tensor());
      of_parameters[group.names[i]] = std::move(entries);
    }
  return own;
}

void OptimizerShards::load_state(Optimizer& optimizer, const StateTree& state) const {
  const at::NoGradGuard no_grad;
  optimizer.load_state(own_part(optimizer, state));
}

}  // namespace fulgur::detail
