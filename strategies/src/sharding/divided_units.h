#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "distributed/shard_groups.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/optimizer.h"
#include "sharding/flat_unit.h"

namespace fulgur::detail {

/// Parameters in units, whose parts belong to the ranks that share them, and what optimizers step in place of them:
/// this rank's elements.
class DividedUnits {
 public:
  struct Making {
    /// Patterns of `parameter_units`.
    std::optional<std::vector<std::string>> patterns = {};
    bool keep_parts = false;  ///< the parts have memory apart from the units
    /// Gets the parameters of each unit before it is made. false: other ranks have it, and it is not made here.
    std::function<bool(const std::vector<NamedParameter>&)> begin_unit = {};
    /// Gets each unit before the next one is made.
    std::function<void(FlatUnit&)> on_unit = {};
    /// Parameters of which this differs are in different units.
    std::function<std::string(const Tensor&)> kind_of = {};
  };
  /// Moves `parameters` of the module into units on `device`. Each unit belongs to one optimizer, or to none. `groups`
  /// must outlive this.
  DividedUnits(const LightningModule& module, const std::vector<NamedParameter>& parameters,
               const std::vector<Optimizer*>& optimizers, ShardGroups& groups, at::Device device, const Making& making);
  /// Gives parameters that are in their units memory that they share with no other.
  virtual ~DividedUnits();
  DividedUnits(const DividedUnits&) = delete;
  DividedUnits& operator=(const DividedUnits&) = delete;

  const std::vector<std::unique_ptr<FlatUnit>>& units() const { return units_; }
  /// The unit of a parameter, and its index there.
  struct Place {
    size_t unit, index;
  };
  const Place& place_of(const Tensor& parameter) const { return places_.at(parameter.unsafeGetTensorImpl()); }
  bool has(const Tensor& parameter) const { return places_.contains(parameter.unsafeGetTensorImpl()); }
  /// Makes what an optimizer steps in place of a parameter.
  Tensor make_shard(const Tensor& parameter);
  /// Whether an optimizer steps the parameter.
  bool steps(const Tensor& parameter) const {
    const auto found = places_.find(parameter.unsafeGetTensorImpl());
    return found != places_.end() && shards_[found->second.unit][found->second.index].defined();
  }
  /// What the optimizer steps in place of a parameter; undefined if none does.
  Tensor& shard(size_t unit, size_t index) { return shards_[unit][index]; }
  /// Brings averages of the gradients of this rank's part of a unit to where the optimizer reads them. They are there
  /// after `await_gradients`.
  virtual Tensor place_gradients(size_t /*unit*/, const Tensor& averages) { return averages; }
  virtual void await_gradients() {}

  /// Replaces this rank's elements in the states of parameters that the optimizer steps here by whole tensors, if this
  /// rank `keeps` them. All ranks that have parts must call it.
  void join_states(const Optimizer& optimizer, StateTree& of_parameters, bool keeps) const;
  /// This rank's elements of a whole tensor of the state of a parameter, which may stand for a stored one. Throws a
  /// CheckpointError that names the parameter and the `entry` of its state if the tensor has another shape.
  Tensor own_elements(const std::string& name, const Tensor& parameter, const std::string& entry,
                      const Tensor& whole) const;

 protected:
  ShardGroups& groups() const { return groups_; }

 private:
  ShardGroups& groups_;
  at::Device device_;
  std::vector<std::unique_ptr<FlatUnit>> units_;
  std::vector<std::vector<Tensor>> shards_;  // of each unit's parameters
  std::unordered_map<const void*, Place> places_;
};

}  // namespace fulgur::detail
