#include "slow_networks/bucket_size.h"

#include <algorithm>

namespace fulgur::detail {

ExchangeCost measure_exchange(ProcessGroup& group, at::Device device) {
  return fit_cost(time_sums(group, device, Among::all, {4, int64_t{8} << 20}));
}

double bucket_size(const ExchangeCost& cost) {
  constexpr double kMiB = 1024 * 1024;
  // latency = (latency + bytes / rate) / 8
  return std::clamp(7 * cost.latency_s * cost.bytes_per_second / kMiB, 1.0, 200.0);
}

}  // namespace fulgur::detail
