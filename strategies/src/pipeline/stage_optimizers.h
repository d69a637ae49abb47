#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "distributed/gradient_averages.h"
#include "distributed/mesh_groups.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/strategies/master_weights.h"
#include "fulgur/strategies/stage_plan.h"
#include "pipeline/stage_parts.h"
#include "pipeline/stage_shards.h"
#include "tensor/tensor_shards.h"

namespace fulgur::detail {

/// Each rank steps the parameters of its stages that it owns, and has the optimizer states of these only. To the
/// optimizers, a parameter is a shard: the parameter on its owner, a part of it on each rank that divides it, and
/// nothing on the other ranks. Ranks along `shard` have their elements of that. For parameters in half precision, they
/// may be float32 copies.
class StageOptimizers final : public DividedMasterWeights {
 public:
  /// Makes the optimizers step shards; states that they have are divided. Throws a ConfigError for an optimizer that
  /// cannot step shards, such as LBFGS or Muon, and for copies of weights in another precision.
  /// `parts`: what the ranks along `tensor` divide; `shards`: what those along `shard` do; nullptr: nothing. States of
  /// `whole`, of which nothing but the rates of the groups is in the optimizers yet, replace those that they have.
  /// `copies`: whole float32 copies of parameters, by their addresses, of which the optimizers step this rank's parts;
  /// those that stand for values get memory on `device`, one after the other. All ranks must call it.
  /// `saved`: what this rank writes of a checkpoint. It and `tensors` must outlive this.
  StageOptimizers(MeshGroups& mesh, const std::vector<StageTensor>& tensors, std::shared_ptr<const TensorShards> parts,
                  std::shared_ptr<StageShards> shards, const StageParts& saved, std::vector<Optimizer*> optimizers,
                  const std::map<const Optimizer*, StateTree>& whole,
                  const std::unordered_map<const void*, Tensor>& copies, at::Device device);
  StageOptimizers(const StageOptimizers&) = delete;
  StageOptimizers& operator=(const StageOptimizers&) = delete;

  /// The optimizers, which must exist, step whole parameters again; states are lost.
  void give_back() const noexcept;
  /// Averages the gradients of this rank's parameters, all of which must have one, over the shares of the data, and
  /// moves them to the shards.
  /// Ranks along `shard` get their elements of them, copies get them in their type.
  /// Parameters have none then. All ranks must call it.
  void take_gradients(Optimizer& optimizer);
  /// Before a step that exchanges gradients: what averages them over `data` while backward computes; nullptr: nothing
  /// does so. Gradients of parameters of several stages, which must be added first, are not among them.
  GradientAverages* begin_averages();
  /// After its backward. All ranks must call it.
  void end_averages();
  /// With shards that are gathered in units: what averages gradients over the shares of the data in a backward, and
  /// moves this rank's elements of them to the shards; nullptr: nothing does so.
  GradientExchange* unit_averages();
  /// After that backward. All ranks must call it.
  void end_unit_averages();
  /// Whether the gradient of a parameter is an average already.
  bool is_averaged(const Tensor& parameter) const { return averaged_.contains(parameter.unsafeGetTensorImpl()); }
  /// Other parameters learn now.
  void forget_averages() { averages_.reset(); }
  /// Marks parameters of other ranks as changed, as a step does with those of this one.
  void note_step(Optimizer& optimizer) const;
  /// The state of all parameters, on rank 0; null on the others. All ranks must call it.
  StateTree state(const Optimizer& optimizer) const;
  /// Loads this rank's part of a state of all parameters, whose tensors are read one after the other.
  void load_state(Optimizer& optimizer, const StateTree& state) const;
  /// Whether this rank steps a parameter, or its part of it.
  bool owns(const Tensor& parameter) const { return owned_.contains(parameter.unsafeGetTensorImpl()); }

  // Of float32 copies.
  void write_back(Optimizer& optimizer) override;
  int64_t bytes() const override;
  StateTree state() const override;
  StateTree state_in_parts(std::vector<TensorPart>& parts) const override;
  void load_state(const StateTree& state) override;

 private:
  /// What an optimizer steps in place of a parameter.
  Tensor shard_of(const Tensor& parameter, const std::unordered_map<const void*, Tensor>& copies, at::Device device);
  /// This rank's part of a whole copy of an owned parameter.
  Tensor own_copy(const Tensor& parameter, const Tensor& whole) const;
  /// The sizes of a parameter of all ranks together.
  at::IntArrayRef whole_sizes(const Tensor& parameter) const;
  /// What the module has of an owned parameter with a copy.
  Tensor of_module(const Tensor& parameter) const;
  bool has_copy(const Tensor& parameter) const { return with_copies_.contains(parameter.unsafeGetTensorImpl()); }
  /// Whole tensors of the entries of all parameters of an optimizer, by name, on rank 0; null on the others. All ranks
  /// must call it.
  StateTree joined(const Optimizer& optimizer, StateTree of_parameters) const;
  bool divides(const Tensor& parameter) const { return parts_ && parts_->has(parameter); }
  /// The state of an owned parameter, with whole tensors; ranks that divide it call it together.
  StateTree whole_state(const Tensor& parameter, const StateTree& state) const;
  /// What this rank keeps of the whole state of a parameter.
  StateTree own_state(const std::string& name, const Tensor& parameter, const StateTree& state) const;

  MeshGroups& mesh_;
  const std::vector<StageTensor>& tensors_;
  const StageParts& saved_;
  std::shared_ptr<const TensorShards> parts_;
  std::shared_ptr<StageShards> shards_;
  std::vector<Optimizer*> optimizers_;
  std::unordered_set<const void*> owned_;
  std::unordered_set<const void*> with_copies_;  ///< parameters, of this rank or of others
  std::unique_ptr<GradientAverages> averages_;
  std::unique_ptr<GradientExchange> unit_averages_;
  bool is_averaging_ = false;
  std::unordered_set<const void*> averaged_;  ///< parameters whose gradients are averages already
};

}  // namespace fulgur::detail
