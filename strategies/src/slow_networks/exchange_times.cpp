#include "fulgur/strategies/exchange_times.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "distributed/shard_groups.h"

namespace fulgur::detail {
namespace {

constexpr int kRounds = 5;

double seconds_of(C10dCollectives& ranks, int64_t bytes, at::Device device) {
  const at::Tensor values = at::zeros({std::max<int64_t>(bytes / 4, 1)}, at::TensorOptions(device).dtype(at::kFloat));
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

std::vector<ExchangeTime> time_sums(ProcessGroup& ranks, at::Device device, Among among,
                                    const std::vector<int64_t>& sizes) {
  const at::NoGradGuard no_grad;
  C10dCollectives& all = *ranks.impl().collectives;
  std::optional<ShardGroups> groups;
  C10dCollectives* chosen = &all;
  if (among != Among::all) {
    groups.emplace(ranks, ranks.place().local_world_size, "devices");
    chosen = among == Among::node ? &groups->parts() : groups->copies();
  }
  std::vector<double> seconds;
  for (const int64_t bytes : sizes) seconds.push_back(chosen == nullptr ? 0 : seconds_of(*chosen, bytes, device));
  const at::Tensor shared = all.broadcast(at::tensor(seconds, at::kDouble), 0);
  std::vector<ExchangeTime> times;
  for (size_t i = 0; i < sizes.size(); ++i)
    times.push_back({.bytes = sizes[i], .seconds = shared.const_data_ptr<double>()[i]});
  return times;
}

// Least squares of (latency + bytes / rate - t) / t.
ExchangeCost fit_cost(const std::vector<ExchangeTime>& times) {
  double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;
  for (const auto& [bytes, seconds] : times) {
    const double weight = 1 / (seconds * seconds), x = static_cast<double>(bytes);
    w += weight;
    wx += weight * x;
    wxx += weight * x * x;
    wy += weight * seconds;
    wxy += weight * x * seconds;
  }
  const double determinant = w * wxx - wx * wx;
  const double per_byte = std::max((w * wxy - wx * wy) / determinant, 1e-15);
  return {.latency_s = std::max((wy - per_byte * wx) / w, 1e-9), .bytes_per_second = 1 / per_byte};
}

}  // namespace fulgur::detail
