#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "distributed/shard_groups.h"
#include "distributed/tensor_average.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/strategies/slow_networks.h"

namespace fulgur::detail {

/// Ranks that train their own weights for `period` steps, and then take their average, or the outer optimizer's step
/// over it. In between, an evaluation and a checkpoint see the average, and each rank gets its own back.
class LocalSgd {
 public:
  /// All ranks must call it. Throws a ConfigError if the groups do not divide the ranks.
  LocalSgd(const LocalSgdOptions& options, double bucket_cap_mb, ProcessGroup& ranks);

  /// Whether a step after `steps` steps averages gradients within the group only.
  bool is_local(int64_t steps) const { return steps >= options_.start_step; }
  /// The ranks whose gradients a local step averages; nullptr: this one alone.
  C10dCollectives* group() { return group_size_ > 1 ? &groups_.parts() : nullptr; }

  /// Sets the parameters when `steps` steps are done. `loaded`: what `state` has returned, or an empty map. Throws a
  /// CheckpointError if it is of another model.
  void start(const std::vector<NamedParameter>& parameters, const std::vector<Optimizer*>& optimizers, int64_t steps,
             const StateTree& loaded);
  /// Call before a step. Puts this rank's weights back.
  void before_step(int64_t steps);
  /// Call when `steps` steps are done. Averages if it is time, and returns whether it has; all ranks must call it.
  bool after_step(int64_t steps);

  /// Whether the parameters are this rank's, which those of other ranks differ from.
  bool has_own_weights() const { return differs_ && shown_.empty(); }
  /// A copy of a parameter, averaged over all ranks, which must call it.
  Tensor average_of(const Tensor& parameter);
  /// Puts the average into the parameters until `show_own`; all ranks must call it.
  void show_average();
  /// Puts this rank's weights back, except those that were written to since.
  void show_own();
  /// Ends the training: the parameters are the average; all ranks must call it.
  void finish();

  /// This rank's weights and the states of its optimizers; those of rank 0's optimizers are in the checkpoint.
  StateTree state() const;
  /// What a run with another number of ranks may take from `state`: all that does not differ between ranks.
  static StateTree shared_state(const StateTree& state);

 private:
  void average();
  /// The parameters of real numbers that were trained since the last average, or may be in the next step.
  std::vector<Tensor> trained() const;
  void forget_trained();
  void make_outer_step();
  bool is_due(int64_t steps) const;
  void take(const StateTree& loaded);

  LocalSgdOptions options_;
  int64_t rank_;
  int64_t group_size_;
  ProcessGroup& ranks_;
  ShardGroups groups_;
  TensorAverage average_;
  std::vector<NamedParameter> parameters_;
  std::vector<Optimizer*> optimizers_;
  int64_t steps_ = 0;          ///< that are done
  bool differs_ = false;       ///< a local step was made since the last average
  std::vector<bool> trained_;  ///< by parameter; the others are the same on all ranks
  /// A parameter that is the average now.
  struct Shown {
    Tensor parameter, own, average;
    int64_t version;  ///< of the parameter, as the average
  };
  std::vector<Shown> shown_;
  std::vector<Tensor> start_;     ///< of the period, for the outer optimizer
  std::vector<Tensor> momentum_;  ///< of the outer optimizer
};

}  // namespace fulgur::detail
