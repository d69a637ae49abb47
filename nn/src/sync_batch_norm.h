#pragma once

#include "fulgur/core/collectives.h"
#include "norm_kernels.h"

namespace fulgur::nn {

struct SyncBatchNormCall {
  Collectives* collectives;
  RunningStatistics running;
  double eps;
  const char* layer;  ///< for messages
};

/// Batch norm over the batches of all ranks: one all_gather_same in forward and, where the input wants a gradient, one
/// all_reduce in backward. Gradients of weight and bias are of this rank's part, as in Python's SyncBatchNorm: what
/// averages the gradients of the ranks makes them those of the whole batch. On CUDA it waits for the device on a rank
/// with a single value per channel or none.
Tensor sync_batch_norm(const Tensor& input, const Tensor& weight, const Tensor& bias, const SyncBatchNormCall& call);

}  // namespace fulgur::nn
