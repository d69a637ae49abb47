#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// How values are distributed, in the form of TensorBoard's HistogramProto.
struct Histogram {
  int64_t num = 0;        ///< finite values, the only ones that the other members describe
  int64_t nonfinite = 0;  ///< other values
  double min = 0, max = 0, sum = 0, sum_squares = 0;
  /// Upper limits of the buckets, and the number of values in each. The first bucket is empty: its limit is the lower
  /// limit of the second one. Both are empty if no value is finite.
  std::vector<double> limits, counts;
};

/// The histogram with the buckets of torch.utils.tensorboard: limits of ±1e-12 · 1.1^k below 1e20, and 0. Values
/// beyond are in the outermost buckets. `values` is a vector on the CPU.
Histogram histogram_of(const Tensor& values);

}  // namespace fulgur
