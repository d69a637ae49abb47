#pragma once

#include <string>

#include "distributed/process_group_impl.h"

namespace fulgur::detail {

/// What exchanges between the ranks of a run cost, as measured.
struct ExchangeCost {
  double latency_s = 0;         ///< of a sum of one number
  double bytes_per_second = 0;  ///< of the tensor that a sum is over, as its size grows
};

/// Measures sums over all ranks on the device whose gradients they exchange. All ranks must call it; all get the
/// numbers of rank 0.
ExchangeCost measure_exchange(ProcessGroup& group, at::Device device);

/// MiB of a bucket whose latency is an eighth of its time: smaller ones wait for the network more often, larger ones
/// begin later. Between 1 and 200.
double bucket_size(const ExchangeCost& cost);

}  // namespace fulgur::detail
