#pragma once

#include <optional>

#include "fulgur/core/state/tensor.h"

namespace fulgur::nn {

/// As operations of LibTorch take a tensor that may be undefined.
inline std::optional<Tensor> given(const Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// Running statistics and the momentum of their update; undefined if none are tracked.
struct RunningStatistics {
  Tensor mean, var;
  double factor = 0;
};

/// Over the values of all ranks; bit-identical on each.
struct NormStatistics {
  Tensor mean, invstd;  ///< (C), at least float32
  Tensor var;           ///< (C), biased; plain kernels only
  Tensor counts;        ///< (ranks) values per channel
};

/// Sums over a rank's values, (C) each, at least float32. `projection` is passed to `input_gradient` of the same
/// kernels.
struct NormSums {
  Tensor dy, projection;
  Tensor weight_gradient, bias_gradient;  ///< undefined if not requested
};

/// Device-specific operations of a batch norm over ranks. Inputs are (N, C, …) with at least one value, except for
/// `statistics_of` and `combine`.
class NormKernels {
 public:
  virtual ~NormKernels() = default;
  /// (2 C + 1): mean, spread and count of this rank's values, for `combine`.
  virtual Tensor summarize(const Tensor& input, double eps) const = 0;
  /// `summaries` is (ranks, 2 C + 1); folds the result into `running`.
  virtual NormStatistics combine(const Tensor& input, const Tensor& summaries, const RunningStatistics& running,
                                 double eps) const = 0;
  virtual Tensor normalize(const Tensor& input, const Tensor& weight, const Tensor& bias,
                           const NormStatistics& statistics, double eps) const = 0;
  virtual NormSums reduce(const Tensor& dy, const Tensor& input, const Tensor& weight, const NormStatistics& statistics,
                          bool for_weight, bool for_bias) const = 0;
  /// `sums` are those of all ranks.
  virtual Tensor input_gradient(const Tensor& dy, const Tensor& input, const Tensor& weight,
                                const NormStatistics& statistics, const NormSums& sums) const = 0;
};

/// Uses only operations that every device supports, also in double.
const NormKernels& plain_norm_kernels();
/// Uses operations that LibTorch has only for CUDA.
const NormKernels& cuda_norm_kernels();

}  // namespace fulgur::nn
