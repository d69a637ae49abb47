#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/state/tensor_part.h"
#include "fulgur/strategies/master_weights.h"
#include "sharding/divided_units.h"
#include "sharding/stepped_parts.h"

namespace fulgur::detail {

/// Gives the optimizer the rates of a whole state, for schedules, until it loads its part of the rest. Returns whether
/// the state has as many groups of parameters; otherwise nothing is done.
bool take_rates(Optimizer& optimizer, const StateTree& state);
/// A state with the rates that the optimizer has now: callbacks and schedules may have changed them since it was
/// loaded.
StateTree with_rates_of(const Optimizer& optimizer, StateTree state);
/// The whole float32 copies that the optimizers step, by the addresses of parameters. `states` gets the states of these
/// copies, unless it has others.
SteppedParts::Copies take_copies(MasterWeights& masters, const std::vector<Optimizer*>& optimizers,
                                 std::map<const Optimizer*, StateTree>& states);

/// Each rank steps a part of the parameters and has the optimizer states of that part only (ZeRO, stage 1: Rajbhandari
/// et al., 2020).
class OptimizerShards final : public DividedUnits, public DividedMasterWeights {
 public:
  /// What else is divided.
  struct Divided {
    bool gradients = false;   ///< the shards get the gradients of their parts before the step (`GradientShards`)
    bool parameters = false;  ///< the shards have memory apart from the units (`ParameterShards`)
    /// Whole float32 copies of parameters, of which optimizers step this rank's parts.
    SteppedParts::Copies masters = {};
    bool in_host_memory = false;  ///< what optimizers step, their gradients and states
  };
  /// Whole states, of which nothing but the rates of the groups is in the optimizers yet.
  using LoadedStates = std::map<const Optimizer*, StateTree>;
  /// Moves the parameters of the optimizers, and with `Divided::parameters` all others, too, into units
  /// (`parameter_units`) on `device`, and makes the optimizers step shards of them; states that they have are divided,
  /// and so are those of `loaded`, which replace them. Each unit belongs to one optimizer, or to none. `on_unit` gets
  /// each unit before the next one is made. Throws a ConfigError for an optimizer that needs whole parameters, and a
  /// CheckpointError for a loaded state that does not fit.
  OptimizerShards(const LightningModule& module, const std::vector<Optimizer*>& optimizers,
                  const std::optional<std::vector<std::string>>& patterns, ShardGroups& groups, const Divided& divided,
                  at::Device device, const std::function<void(FlatUnit&)>& on_unit, const LoadedStates& loaded);
  /// Gives the shards of the optimizer their parts of the parameters' whole gradients: as views, or in float32.
  void take_gradients(Optimizer& optimizer);
  void drop_gradients(Optimizer& optimizer) const noexcept;
  Tensor place_gradients(size_t unit, const Tensor& averages) override;
  void await_gradients() override;
  /// Before a step, whose gradients are there: what has been written to parameters is in the shards afterwards.
  void before_step(const Optimizer& optimizer);
  /// After a step: sends the shards to all ranks, which all call it: those of units in which a parameter has a
  /// gradient. Divided parameters are only marked as changed.
  void gather_parameters(const Optimizer& optimizer);
  /// The state with whole tensors, on rank 0; null on the others. All ranks must call it.
  StateTree state(const Optimizer& optimizer) const;
  /// The state with a tensor on `meta` in place of each divided one, and what this rank writes of these.
  StateTree state_in_parts(const Optimizer& optimizer, std::vector<TensorPart>& parts) const;
  /// What this rank writes of a parameter: its elements in the unit's buffer, if they `are_there`, or those that it
  /// keeps.
  TensorPart part_of(size_t unit, size_t index, bool are_there) const;
  /// Loads the parts of this rank of a state with whole tensors. Of those that stand for stored values, it reads these
  /// parts only.
  void load_state(Optimizer& optimizer, const StateTree& state) const;
  bool in_host_memory() const { return stepped_ && stepped_->in_host_memory(); }

  // Of float32 copies, if optimizers step them.
  void write_back(Optimizer& optimizer) override;
  int64_t bytes() const override { return stepped_ ? stepped_->master_bytes() : 0; }
  StateTree state() const override;
  StateTree state_in_parts(std::vector<TensorPart>& parts) const override;
  void load_state(const StateTree& state) override;

 private:
  Tensor shard_of(const Optimizer& optimizer, const std::string& name, const Tensor& parameter);
  std::vector<size_t> changed_units(const Optimizer& optimizer) const;
  bool has_stepped(size_t unit) const { return stepped_ && stepped_->has(unit); }
  StateTree own_part(const Optimizer& optimizer, const StateTree& state) const;
  /// `elements` of this rank as a part of a tensor like the parameter; none if a rank with a copy writes them.
  TensorPart as_part(size_t unit, size_t index, const Tensor& elements) const;

  bool divides_parameters_;
  std::optional<SteppedParts> stepped_;
  std::map<std::string, Tensor> with_masters_;  // parameters, by the names that optimizers have for them
};

}  // namespace fulgur::detail
