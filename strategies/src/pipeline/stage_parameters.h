#pragma once

#include <c10/core/Storage.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "distributed/mesh_groups.h"
#include "fulgur/strategies/stage_plan.h"
#include "pipeline/stage_shards.h"
#include "tensor/tensor_shards.h"

namespace fulgur::detail {

/// Keeps the parameters of this rank's stages only, and of parameters that ranks divide its parts. A parameter of other
/// stages has memory that cannot be read, until all are gathered for an evaluation or a save; so has between steps one
/// that ranks along `shard` divide.
class StageParameters {
 public:
  /// `tensors` are those of the plan, and must outlive this. All are whole at first. All ranks must call it.
  /// `parts` divides parameters among the ranks along `tensor`, `shards` among those along `shard`; nullptr: they are
  /// not divided.
  StageParameters(MeshGroups& mesh, const std::vector<StageTensor>& tensors, std::shared_ptr<TensorShards> parts,
                  std::shared_ptr<StageShards> shards);
  StageParameters(const StageParameters&) = delete;
  StageParameters& operator=(const StageParameters&) = delete;

  /// Frees the parameters of other stages, and outside of steps what others along `shard` have.
  void divide();
  /// Gets what this rank computes with. All ranks must call it.
  void begin_step();
  void begin_backward();
  void end_step();
  bool are_there() const { return shards_ && shards_->are_there(); }
  /// Gets all parameters and buffers from their owners, until `divide`. All ranks must call it.
  void gather();
  bool is_whole() const { return is_whole_; }
  /// Whether all parameters are there now, for `gather` or `hold`.
  bool are_all_there() const { return is_there_; }
  /// Gets all buffers from their owners. All ranks must call it.
  void gather_buffers();
  /// Whole values of parameters of the plan, which are divided; they share memory with those that this rank has whole.
  /// All ranks must call it.
  std::vector<Tensor> whole_values(const std::vector<const StageTensor*>& tensors);
  /// A copy of the whole value of a parameter. All ranks must call it.
  Tensor copy_of(const Tensor& parameter);
  /// Takes what this rank keeps of a whole value; `own` has the memory of its parameter, which may read another one
  /// now.
  void take_value(const StageTensor& tensor, const Tensor& own, const Tensor& whole);
  /// Gathers until `release`, whatever `divide` does. All ranks must call it.
  void hold();
  void release();
  /// Makes the buffers of this rank's stages those of the first share of the data. All ranks must call it.
  void take_buffers();
  /// Sums the gradients of parameters that several ranks read, for their owners. All ranks must call it.
  void sum_shared_gradients();
  /// Throws a DistributedError that names the parameters of this rank that have no gradient, as ddp does, except those
  /// for which `is_taken`.
  void require_gradients(const std::function<bool(const Tensor&)>& is_taken) const;
  /// Gives the values of parameters that several ranks read, or have, to all of them. All ranks must call it.
  void spread_shared_values();
  /// Throws a DistributedError that names a parameter of this rank that differs between shares of the data, or between
  /// ranks of the axis `tensor` if they do not divide it. All ranks must call it.
  void check_copies();

 private:
  bool is_owner(const StageTensor& tensor) const { return tensor.owner() == rank_; }
  bool is_here(const StageTensor& tensor) const;
  /// What this rank keeps of a parameter of its stages.
  Tensor kept(const Tensor& parameter) const;
  std::vector<Tensor> own_buffers() const;
  /// The parameters of this rank's stages that differ from those of a group of ranks; empty: none does.
  std::string different_from(C10dCollectives* ranks, bool with_divided) const;

  MeshGroups& mesh_;
  const std::vector<StageTensor>& tensors_;
  std::shared_ptr<TensorShards> parts_;
  std::shared_ptr<StageShards> shards_;
  int64_t rank_;  ///< in the pipeline
  /// Parameters of this rank that others read, too, with their ranks' group, and the owner's rank in it.
  struct Shared {
    Tensor value;
    c10::intrusive_ptr<c10d::ProcessGroup> group;
    int64_t owner = 0;
  };
  std::vector<Shared> shared_;
  /// Parameters of other stages, with what they read while they are there and while they are away. Callbacks keep
  /// aliases of parameters, so it is the same storage each time.
  struct Remote {
    Tensor value;
    c10::Storage whole, away;
  };
  std::vector<Remote> remote_;
  bool is_whole_ = true;
  bool is_there_ = true;  ///< the memory of `remote_`
  bool in_step_ = false;
  int held_ = 0;  ///< calls of `hold` that are not released
  void free();
  /// `fetch_all`, with what to do if that needs too much memory.
  void fetch();
  void fetch_all();
  /// Sends values from their owners to the other stages.
  void send_from_owners(const std::function<bool(const StageTensor&)>& is_sent);
};

}  // namespace fulgur::detail
