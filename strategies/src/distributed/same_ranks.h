#pragma once

#include <vector>

#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/contracts/module.h"

namespace fulgur::detail {

/// What ranks of a data-parallel run must have in common.
struct RankState {
  LightningModule& module;
  std::vector<const Optimizer*> optimizers;
  std::vector<int64_t> optimizer_steps;  ///< one for each; empty: not compared
  int64_t global_step = 0;
  bool has_whole_weights = true;  ///< else weights are not compared: each rank has other parts
};

/// The bits of a tensor, summed as integers: one flipped bit changes it. A scalar int64 on its device.
Tensor checksum(const Tensor& value);
/// The elements as integers with the same bits.
Tensor bits_of(const Tensor& value);

/// Compares weights bit by bit (those that are whole), learning rates and step counts over all ranks, each of which
/// must call it; exchanges a few integers. Throws a DistributedError on all of them that names the differences, the
/// ranks and possible causes.
void check_same_ranks(Collectives& collectives, const RankState& state);

}  // namespace fulgur::detail
