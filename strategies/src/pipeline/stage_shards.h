#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "distributed/gradient_exchange.h"
#include "distributed/mesh_groups.h"
#include "fulgur/strategies/stage_plan.h"
#include "sharding/divided_units.h"
#include "sharding/parameter_shards.h"
#include "tensor/tensor_shards.h"

namespace fulgur::detail {

/// Divides what a rank has of the parameters, of its stages and along `tensor`, among the ranks along `shard`, in
/// units. Between steps, each of them keeps its part of each unit. A pipeline gathers all units for a step, whose
/// micro-batches would exchange them again and again; else a unit is gathered when it is read, and freed (ZeRO, stage
/// 3).
class StageShards {
 public:
  /// Parameters that stand for values get what this rank has of them. `tensors` are those of the plan; `parts` are what
  /// ranks along `tensor` divide, or nullptr. `patterns` are those of `parameter_units`. All ranks must call it.
  StageShards(const LightningModule& module, MeshGroups& mesh, const std::vector<StageTensor>& tensors,
              TensorShards* parts, const std::vector<Optimizer*>& optimizers,
              const std::optional<std::vector<std::string>>& patterns, at::Device device);

  DividedUnits& units() { return units_; }
  const DividedUnits& units() const { return units_; }
  /// Whether a step gathers unit by unit.
  bool steps_in_units() const { return steps_in_units_; }
  /// What gathers units in a step; null if a step does not gather unit by unit.
  ParameterShards* parameter_shards() { return steps_in_units_ ? &parameters_ : nullptr; }
  /// All ranks must call them.
  void begin_step();
  void begin_backward();
  void end_step();
  /// Gets the parts of all ranks, also within a step. All ranks must call it.
  void gather();
  /// Keeps this rank's parts, as they are in the units now.
  void free();
  bool are_there() const { return are_there_; }
  /// A tensor whose memory is that of a parameter of this rank while it is gathered.
  Tensor while_gathered(const Tensor& parameter) const;
  /// What this rank keeps of a parameter, as a vector: of the last `free`, and of the steps since.
  Tensor own_elements(const Tensor& parameter) const;
  /// A buffer with the parts of all ranks of a unit. All ranks must call it.
  Tensor whole(size_t unit);
  /// What gives optimizers their parts of the gradients of these parameters while a backward computes.
  std::unique_ptr<GradientExchange> make_reducer(std::vector<NamedParameter> parameters);
  /// Gives optimizers their parts of the gradients, as averages over all shares of the data. `parameters` are all that
  /// an optimizer steps on this rank. All ranks must call it.
  void average_gradients(const std::vector<Tensor>& parameters);

 private:
  ShardGroups groups_;
  ParameterShards parameters_;
  DividedUnits units_;
  bool steps_in_units_, are_there_ = false;
};

}  // namespace fulgur::detail
