#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "distributed/mesh_groups.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/state/tensor_part.h"
#include "fulgur/strategies/stage_plan.h"
#include "pipeline/stage_shards.h"
#include "tensor/tensor_shards.h"

namespace fulgur::detail {

/// What this rank writes of a checkpoint to which all ranks of a mesh contribute. Each element is written by one rank:
/// by the first along `data`, of the first stage that reads it, and if the ranks along `tensor` do not divide it, by
/// the first of these.
class StageParts {
 public:
  /// `tensors` are those of the plan. `parts` and `shards` are what ranks along `tensor` and `shard` divide; nullptr:
  /// nothing. All references must outlive this.
  StageParts(MeshGroups& mesh, const std::vector<StageTensor>& tensors, std::shared_ptr<const TensorShards> parts,
             std::shared_ptr<const StageShards> shards);
  StageParts(const StageParts&) = delete;
  StageParts& operator=(const StageParts&) = delete;

  /// What is written of a parameter or a buffer, with the values of now; nullopt: rank 0 writes all of it.
  std::optional<TensorPart> of_tensor(const Tensor& tensor) const;
  /// What is written of the float32 copy of a parameter, of which `own` is this rank's part.
  TensorPart of_copy(const Tensor& parameter, const Tensor& own) const;
  /// The state of all parameters, with a tensor on `meta` in place of each one that has elements of a parameter.
  /// Appends what this rank writes of these. The ranks tell each other what the states have. All must call it.
  StateTree of_optimizer(const Optimizer& optimizer, std::vector<TensorPart>& parts) const;

 private:
  bool divides(const Tensor& tensor) const { return parts_ && parts_->has(tensor); }
  /// Whether this rank writes elements of a tensor.
  bool writes(const StageTensor& tensor) const;
  /// On `meta`, like a tensor of all ranks. Parts of it are counted in this rank's slice.
  Tensor whole_of(const Tensor& tensor, at::ScalarType dtype) const;
  /// A part of `whole`, which has the elements of a tensor; `own` returns those of this rank, a vector, if it writes
  /// any.
  TensorPart part_of(const StageTensor& tensor, Tensor whole, const std::function<Tensor()>& own) const;
  /// The values that this rank has of a tensor: a vector.
  Tensor own_values(const StageTensor& tensor) const;
  /// What this rank has of a tensor of the states, `value`, for the owned parameter `parameter`: a vector.
  Tensor own_values(const Tensor& parameter, const Tensor& value) const;
  /// The place of these values in the tensor, or in this rank's slice.
  int64_t first_element(const StageTensor& tensor) const;
  /// By the names of parameters, what the states of this rank have: numbers as they are, and for a tensor of elements
  /// an empty one.
  StateTree described(const Optimizer& optimizer, const StateTree& of_parameters) const;

  MeshGroups& mesh_;
  std::shared_ptr<const TensorShards> parts_;
  std::shared_ptr<const StageShards> shards_;
  std::unordered_map<const void*, const StageTensor*> tensors_;
};

}  // namespace fulgur::detail
