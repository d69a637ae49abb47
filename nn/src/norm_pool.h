#pragma once

#include "norm_kernels.h"

namespace fulgur::nn {

/// Whether `norm_max_pool_relu` takes these tensors: on the CPU, float32 or bfloat16 with the channels innermost, at
/// least 2 x 2 pixels. `weight` and `bias` may be undefined. Not while a step is traced, as for TorchScript: its
/// program must consist of operations that every LibTorch has.
bool takes_norm_pool(const Tensor& images, const Tensor& weight, const Tensor& bias);
/// Whether `evaluated_norm_max_pool_relu` takes these, too.
bool takes_running_statistics(const Tensor& images, const RunningStatistics& running);

/// relu(max_pool2d(batch_norm(images), 2)) with the statistics of the batch, which are folded into `running`. It
/// computes the same as the three operations, in one pass over the images, without their intermediate results; the
/// gradients take two. Gradients of gradients come from operations of LibTorch.
Tensor norm_max_pool_relu(const Tensor& images, const Tensor& weight, const Tensor& bias,
                          const RunningStatistics& running, double eps);

/// The same with the running statistics, which stay as they are. Without gradients.
Tensor evaluated_norm_max_pool_relu(const Tensor& images, const Tensor& weight, const Tensor& bias,
                                    const RunningStatistics& running, double eps);

}  // namespace fulgur::nn
