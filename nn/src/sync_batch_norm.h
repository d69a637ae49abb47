#pragma once

#include "fulgur/core/contracts/collectives.h"
#include "norm_kernels.h"

namespace fulgur::nn {

struct SyncBatchNormCall {
  Collectives* collectives;
  RunningStatistics running;
  double eps;
  const char* layer;  ///< for messages
};

/// Batch norm over the batches of all ranks: one all_gather_same in forward and, if the input requires a gradient, one
/// all_reduce in backward. Gradients of weight and bias are of this rank's part, as in Python's SyncBatchNorm:
/// averaging the gradients over ranks makes them those of the whole batch. On CUDA it synchronizes on a rank with at
/// most one value per channel.
Tensor sync_batch_norm(const Tensor& input, const Tensor& weight, const Tensor& bias, const SyncBatchNormCall& call);

}  // namespace fulgur::nn
