#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <ostream>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"
#include "fulgur/nn/sync_norm.h"

namespace fulgur::nn {

using torch::nn::BatchNorm1dOptions;
using torch::nn::BatchNorm2dOptions;
using torch::nn::BatchNorm3dOptions;
using torch::nn::BatchNormOptions;

/// Base of BatchNorm1d, 2d and 3d, which are drop-in replacements for LibTorch's layers, with the same options,
/// parameter and buffer names, and results. LibTorch's forward is not virtual, so a run could not change how LibTorch's
/// layers normalise. After sync_over, it gives the results, gradients and running statistics of all ranks' batches as
/// one. With `momentum` of nullopt the counter is copied to the host in each training step.
template <class Derived>
class FULGUR_API BatchNormImplBase : public torch::nn::Cloneable<Derived>, public SyncableNorm {
 public:
  explicit BatchNormImplBase(const BatchNormOptions& options_);

  /// Registers parameters and buffers again and sets them to their initial values.
  void reset() override;
  void reset_running_stats();
  void reset_parameters();
  /// Maps (N, C, …) to the same shape, normalised over all dimensions except C. It uses batch statistics in training
  /// and if running statistics are not tracked, else the running ones. Throws an Error for another number of dimensions
  /// or channels, and in training for a single value per channel.
  Tensor forward(const Tensor& input);
  void sync_over(Collectives* collectives) override;
  void pretty_print(std::ostream& stream) const override;

  BatchNormOptions options;
  Tensor weight;               ///< (C), undefined without `affine`
  Tensor bias;                 ///< (C), undefined without `affine`
  Tensor running_mean;         ///< (C), undefined without `track_running_stats`
  Tensor running_var;          ///< (C), unbiased; undefined without `track_running_stats`
  Tensor num_batches_tracked;  ///< int64 scalar, undefined without `track_running_stats`

 protected:
  /// Checks the input and counts the batch; returns the momentum of the running statistics.
  double begin(const Tensor& input);
  /// Whether the statistics of the batch are those of all ranks.
  bool is_synced() const { return collectives_ != nullptr && this->is_training(); }

 private:
  void check(const Tensor& input) const;

  Collectives* collectives_ = nullptr;
};

class FULGUR_API BatchNorm1dImpl;
class FULGUR_API BatchNorm2dImpl;
class FULGUR_API BatchNorm3dImpl;
extern template class BatchNormImplBase<BatchNorm1dImpl>;
extern template class BatchNormImplBase<BatchNorm2dImpl>;
extern template class BatchNormImplBase<BatchNorm3dImpl>;

/// Batch normalisation over (N, C) or (N, C, L).
class FULGUR_API BatchNorm1dImpl : public BatchNormImplBase<BatchNorm1dImpl> {
 public:
  static constexpr const char* kName = "BatchNorm1d";
  static constexpr int64_t kMinDims = 2, kMaxDims = 3;
  using BatchNormImplBase::BatchNormImplBase;
};

/// Batch normalisation over (N, C, H, W).
class FULGUR_API BatchNorm2dImpl : public BatchNormImplBase<BatchNorm2dImpl> {
 public:
  static constexpr const char* kName = "BatchNorm2d";
  static constexpr int64_t kMinDims = 4, kMaxDims = 4;
  using BatchNormImplBase::BatchNormImplBase;

  /// The same as `at::max_pool2d(forward(input), 2).relu_()`. On the CPU, in training with the statistics of one rank
  /// or in an evaluation without gradients, and for inputs of float32 or bfloat16 whose channels are innermost in
  /// memory (`trainer.memory_format: channels_last`), it is one operation, 2.0 to 4.0 times as fast, which does not
  /// keep the normalised values. Its sums do not depend on the number of threads. Results differ by rounding, and so
  /// may the choice among values that are equal but for rounding.
  Tensor forward_max_pool_relu(const Tensor& input);
};

/// Batch normalisation over (N, C, D, H, W).
class FULGUR_API BatchNorm3dImpl : public BatchNormImplBase<BatchNorm3dImpl> {
 public:
  static constexpr const char* kName = "BatchNorm3d";
  static constexpr int64_t kMinDims = 5, kMaxDims = 5;
  using BatchNormImplBase::BatchNormImplBase;
};

TORCH_MODULE(BatchNorm1d);
TORCH_MODULE(BatchNorm2d);
TORCH_MODULE(BatchNorm3d);

}  // namespace fulgur::nn
