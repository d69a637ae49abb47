#include "sharding/divided_units.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "distributed/process_group_impl.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/system/free_memory.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "sharding/first_rank_values.h"
#include "sharding/parameter_units.h"
#include "sharding/step_count.h"

namespace fulgur::detail {
namespace {

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

// Elements of `whole`, in the order of memory with these strides.
Tensor range_of(const Tensor& whole, at::IntArrayRef strides, const FlatUnit::Range& range) {
  const auto [begin, count] = range;
  const bool same_order = whole.strides() == strides;
  if (auto values = stored_values(whole); values && same_order)
    return stand_in(at::empty({count}, whole.options()),
                    c10::make_intrusive<StoredRange>(std::move(values), begin, count));
  Tensor ordered = read_now(whole);
  if (!same_order) ordered = at::empty_strided(ordered.sizes(), strides, ordered.options()).copy_(ordered);
  return in_memory_order(ordered).narrow(0, begin, count).clone();
}

}  // namespace

DividedUnits::DividedUnits(const LightningModule& module, const std::vector<NamedParameter>& parameters,
                           const std::vector<Optimizer*>& optimizers, ShardGroups& groups, at::Device device,
                           const Making& making)
    : groups_(groups), device_(device) {
  std::map<const void*, size_t> stepped;  // by which optimizer
  for (size_t i = 0; i < optimizers.size(); ++i)
    for (const ParamGroup& each : optimizers[i]->groups())
      for (const Tensor& parameter : each.params) stepped.emplace(parameter.unsafeGetTensorImpl(), i);
  const auto optimizer_of = [&](const Tensor& parameter) {
    const auto found = stepped.find(parameter.unsafeGetTensorImpl());
    return found == stepped.end() ? optimizers.size() : found->second;
  };
  bool were_computed = false;
  for (ParameterUnit& unit : parameter_units(module, parameters, making.patterns)) {
    // Frozen parameters have no state: each rank gets its part of those that learn.
    std::map<std::tuple<size_t, at::ScalarType, bool, std::string>, std::vector<NamedParameter>> alike;
    for (NamedParameter& parameter : unit.parameters) {
      const Tensor& value = parameter.value;
      alike[{optimizer_of(value), value.scalar_type(), value.requires_grad(),
             making.kind_of ? making.kind_of(value) : std::string()}]
          .push_back(std::move(parameter));
    }
    for (auto& [kind, members] : alike) {
      if (making.begin_unit && !making.begin_unit(members)) continue;
      for (size_t i = 0; i < members.size(); ++i)
        places_.emplace(members[i].value.unsafeGetTensorImpl(), Place{units_.size(), i});
      shards_.emplace_back(members.size());
      // Other values than those of the first rank are never read.
      const bool wait =
          std::ranges::any_of(members, [](const NamedParameter& each) { return stored_values(each.value) != nullptr; });
      units_.push_back(std::make_unique<FlatUnit>(std::move(members), device, groups.parts().rank(),
                                                  groups.parts().world_size(), is_first_rank(groups.whole())));
      if (wait) send_from_first_rank(groups.whole(), groups.strategy(), units_.back()->buffer());
      were_computed = were_computed || wait;
      if (making.keep_parts) units_.back()->keep_part();
      if (making.on_unit) making.on_unit(*units_.back());
    }
    if (were_computed) return_free_memory();
  }
}

DividedUnits::~DividedUnits() {
  for (const auto& unit : units_) unit->release(device_);
}

Tensor DividedUnits::make_shard(const Tensor& parameter) {
  const auto [unit, index] = place_of(parameter);
  return shards_[unit][index] = units_[unit]->own_elements(index).detach().set_requires_grad(true);
}

void DividedUnits::join_states(const Optimizer& optimizer, StateTree& of_parameters, bool keeps) const {
  const at::NoGradGuard no_grad;
  // The places of the entries that are divided, by unit and name: `exp_avg` of the parameters that have one.
  struct Entry {
    std::string parameter;
    size_t index;
  };
  std::map<std::pair<size_t, std::string>, std::vector<Entry>> divided;
  for (const ParamGroup& group : optimizer.groups())
    for (size_t i = 0; i < group.params.size(); ++i) {
      if (!steps(group.module_params[i])) continue;
      const Place& place = place_of(group.module_params[i]);
      for (const auto& [name, value] : of_parameters.at(group.names[i]).as_map())
        if (name != kStepCount) divided[{place.unit, name}].push_back({group.names[i], place.index});
    }
  for (const auto& [key, entries] : divided) {
    const FlatUnit& unit = *units_[key.first];
    const auto value_of = [&](const Entry& entry) { return of_parameters.at(entry.parameter).at(key.second).tensor(); };
    const Tensor buffer = at::zeros(unit.buffer().sizes(), value_of(entries.front()).options().requires_grad(false));
    for (const Entry& entry : entries) unit.own_elements(entry.index, buffer).copy_(value_of(entry));
    run_exchange(groups_.whole(), groups_.strategy(), [&] { groups_.parts().start_gather(buffer)->wait(); });
    if (keeps)
      for (const Entry& entry : entries)
        of_parameters[entry.parameter][key.second] =
            unit.whole(entry.index, buffer).clone(at::MemoryFormat::Contiguous);
  }
}

Tensor DividedUnits::own_elements(const std::string& name, const Tensor& parameter, const std::string& entry,
                                  const Tensor& whole) const {
  const auto [unit, index] = place_of(parameter);
  const FlatUnit& flat = *units_[unit];
  if (whole.sizes() != flat.sizes(index))
    throw CheckpointError(cat("[strategies.", groups_.strategy(), "] the optimizer state does not fit the parameters: ",
                              entry, " of '", escape_controls(name), "' has shape ", shape_text(whole.sizes()),
                              " in the checkpoint, the parameter ", shape_text(flat.sizes(index)), "."));
  return range_of(whole, flat.strides(index), flat.own_range(index));
}

}  // namespace fulgur::detail
