#pragma once

#include "fulgur/strategies/exchange_times.h"

namespace fulgur::detail {

/// Measures sums over all ranks on the device whose gradients they exchange. All ranks must call it; all get the
/// numbers of rank 0.
ExchangeCost measure_exchange(ProcessGroup& group, at::Device device);

/// MiB of a bucket whose latency is an eighth of its time: smaller ones wait for the network more often, larger ones
/// begin later. Between 1 and 200.
double bucket_size(const ExchangeCost& cost);

}  // namespace fulgur::detail
