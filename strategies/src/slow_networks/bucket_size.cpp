#include "slow_networks/bucket_size.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>

namespace fulgur::detail {
namespace {

constexpr int64_t kLargeBytes = int64_t{8} << 20;
constexpr int kRounds = 5;

/// The shortest time of a sum of so many bytes.
double seconds_of(C10dCollectives& ranks, int64_t bytes, at::Device device) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = at::zeros({bytes / 4}, at::TensorOptions(device).dtype(at::kFloat));
  double least = 1e9;
  // The first one connects the ranks.
  for (int i = 0; i <= kRounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    ranks.sum(values);
    if (!device.is_cpu()) {
      const c10::impl::VirtualGuardImpl guard(device.type());
      guard.synchronizeStream(guard.getStream(device));
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (i > 0) least = std::min(least, took.count());
  }
  return least;
}

}  // namespace

ExchangeCost measure_exchange(ProcessGroup& group, at::Device device) {
  C10dCollectives& ranks = *group.impl().collectives;
  const double small = seconds_of(ranks, 4, device), large = seconds_of(ranks, kLargeBytes, device);
  const at::Tensor shared = ranks.broadcast(at::tensor({small, std::max(large - small, 1e-9)}, at::kDouble), 0);
  const double* seconds = shared.const_data_ptr<double>();
  return {.latency_s = seconds[0], .bytes_per_second = static_cast<double>(kLargeBytes) / seconds[1]};
}

double bucket_size(const ExchangeCost& cost) {
  constexpr double kMiB = 1024 * 1024;
  // latency = (latency + bytes / rate) / 8
  return std::clamp(7 * cost.latency_s * cost.bytes_per_second / kMiB, 1.0, 200.0);
}

}  // namespace fulgur::detail
