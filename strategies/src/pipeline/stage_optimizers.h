#pragma once

#include <memory>
#include <unordered_set>
#include <vector>

#include "distributed/mesh_groups.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/strategies/stage_plan.h"
#include "pipeline/stage_shards.h"
#include "tensor/tensor_shards.h"

namespace fulgur::detail {

/// Each rank steps the parameters of its stages that it owns, and has the optimizer states of these only. To the
/// optimizers, a parameter is a shard: the parameter on its owner, a part of it on each rank that divides it, and
/// nothing on the other ranks. Ranks along `shard` have their elements of that.
class StageOptimizers {
 public:
  /// Makes the optimizers step shards; states that they have are divided. Throws a ConfigError for an optimizer that
  /// cannot step shards, such as LBFGS or Muon, and for copies of weights in another precision.
  /// `parts`: what the ranks along `tensor` divide; `shards`: what those along `shard` do; nullptr: nothing.
  StageOptimizers(MeshGroups& mesh, const std::vector<StageTensor>& tensors, std::shared_ptr<const TensorShards> parts,
                  std::shared_ptr<StageShards> shards, std::vector<Optimizer*> optimizers);
  StageOptimizers(const StageOptimizers&) = delete;
  StageOptimizers& operator=(const StageOptimizers&) = delete;

  /// The optimizers, which must exist, step whole parameters again; states are lost.
  void give_back() const noexcept;
  /// Averages the gradients of this rank's parameters over the shares of the data, and moves them to the shards.
  /// Ranks along `shard` get their elements of them.
  /// Parameters have none then. All ranks must call it.
  void take_gradients(Optimizer& optimizer) const;
  /// Marks parameters of other ranks as changed, as a step does with those of this one.
  void note_step(Optimizer& optimizer) const;
  /// The state of all parameters, on rank 0; null on the others. All ranks must call it.
  StateTree state(const Optimizer& optimizer) const;
  /// Loads this rank's part of a state of all parameters.
  void load_state(Optimizer& optimizer, const StateTree& state) const;

 private:
  bool owns(const Tensor& parameter) const { return owned_.contains(parameter.unsafeGetTensorImpl()); }

  bool divides(const Tensor& parameter) const { return parts_ && parts_->has(parameter); }
  /// The state of an owned parameter, with whole tensors; ranks that divide it call it together.
  StateTree whole_state(const Tensor& parameter, const StateTree& state) const;
  /// What this rank keeps of the whole state of a parameter.
  StateTree own_state(const std::string& name, const Tensor& parameter, const StateTree& state) const;

  MeshGroups& mesh_;
  std::shared_ptr<const TensorShards> parts_;
  std::shared_ptr<StageShards> shards_;
  std::vector<Optimizer*> optimizers_;
  std::unordered_set<const void*> owned_;
};

}  // namespace fulgur::detail
