#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"
#include "fulgur/strategies/process_group.h"

namespace fulgur::detail {

/// How long a sum over ranks takes.
struct ExchangeTime {
  int64_t bytes = 0;   ///< of the tensor on each rank
  double seconds = 0;  ///< the shortest of several
};

/// Which ranks exchange.
enum class Among {
  all,        ///< all ranks
  node,       ///< the ranks of a node
  same_place  ///< the ranks with the same number on all nodes
};

/// Times sums of float32 tensors of `sizes` bytes on `device`. All ranks must call it, with the same sizes; all get the
/// numbers of rank 0. Throws a ConfigError if nodes have different numbers of ranks, unless `among` is all.
FULGUR_API std::vector<ExchangeTime> time_sums(ProcessGroup& ranks, at::Device device, Among among,
                                               const std::vector<int64_t>& sizes);

/// The cost of an exchange as `latency + bytes / rate`.
struct ExchangeCost {
  double latency_s = 0;
  double bytes_per_second = 0;
};

/// The cost with the least sum of squared relative errors; neither part is negative. Needs two sizes or more.
FULGUR_API ExchangeCost fit_cost(const std::vector<ExchangeTime>& times);

}  // namespace fulgur::detail
