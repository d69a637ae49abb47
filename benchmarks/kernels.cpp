// The kernels of our models on one CPU thread, forward and backward, against what the machine can do: a kernel must
// read its inputs and write its outputs once, at the rate of a copy of as many bytes, and multiply at the rate of the
// fastest matrix product. Prints for each its least CPU time, bytes, FLOPs and the share of that limit; below it, other
// kernels of LibTorch and oneDNN for the same work. `--report FILE` writes them as JSON.
//
//   cmake --build build/release --target kernels && build/release/bin/kernels
#include <ATen/core/grad_mode.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "cpp/bench.h"
#include "fulgur/core/system/large_blocks.h"
#include "kernels/rows.h"

namespace {

using bench::KernelRow;

constexpr int kRounds = 9;

double least_seconds(const std::function<void()>& work, int rounds = kRounds) {
  double least = 1e9;
  for (int round = 0; round <= rounds; ++round) {
    const double seconds = bench::seconds_of(work);
    if (round > 0) least = std::min(least, seconds);  // the first maps memory
  }
  return least;
}

/// What this machine can do with one thread.
class Limits {
 public:
  Limits() {
    std::printf("copies, GB/s read and written:");
    for (double bytes = 1 << 14; bytes <= (1 << 28); bytes *= 4) {
      rates_.push_back({bytes, bytes / least_seconds(bench::copy_of(bytes))});
      std::printf("  %.3g KiB %.0f", bytes / 1024, rates_.back().second * 1e-9);
    }
    for (const auto& [flops, work] : bench::large_products()) flops_ = std::max(flops_, flops / least_seconds(work));
    call_ = least_seconds(bench::smallest_call());
    std::printf("\nmatrix products: %.0f GFLOP/s; the smallest call of a kernel: %.2f µs\n", flops_ * 1e-9,
                call_ * 1e6);
  }
  /// Seconds that the work takes at least. Between two sizes, the rate of a copy changes with the logarithm of the
  /// size.
  double seconds(const KernelRow& row) const { return std::max(row.bytes / rate(row.bytes), row.flops / flops_); }
  bool is_bound_by_flops(const KernelRow& row) const { return row.flops / flops_ > row.bytes / rate(row.bytes); }
  nlohmann::json report() const { return {{"copies", rates_}, {"flops", flops_}, {"call_s", call_}}; }

 private:
  double rate(double bytes) const {
    const auto above = std::ranges::find_if(rates_, [&](const auto& entry) { return entry.first >= bytes; });
    if (above == rates_.begin()) return above->second;
    if (above == rates_.end()) return rates_.back().second;
    const auto below = above - 1;
    const double share = std::log(bytes / below->first) / std::log(above->first / below->first);
    return below->second + share * (above->second - below->second);
  }

  std::vector<std::pair<double, double>> rates_;  // bytes and bytes/s
  double flops_ = 0, call_ = 0;
};

void measure(const std::string& report, const std::string& only) {
  const Limits limits;
  auto rows = nlohmann::json::array();
  std::string names;
  for (const bench::KernelModel& of : bench::kernel_models()) {
    names += (names.empty() ? "" : ", ") + of.name;
    if (!only.empty() && of.name.find(only) == std::string::npos) continue;
    std::printf("\n%-52s %10s %9s %9s  %s\n", of.name.c_str(), "µs", "MB", "MFLOP", "of the limit");
    for (const KernelRow& row : of.rows()) {
      const double seconds = least_seconds(row.work), least = limits.seconds(row);
      std::printf("%-52s %10.1f %9.2f %9.1f  %3.0f %%%s\n", row.name.c_str(), seconds * 1e6, row.bytes * 1e-6,
                  row.flops * 1e-6, 100 * least / seconds, limits.is_bound_by_flops(row) ? "  FLOPs" : "");
      auto others = nlohmann::json::object();
      for (const auto& [name, work] : row.others) {
        const double other = least_seconds(work);
        std::printf("    %-48s %10.1f %30.0f %%\n", name.c_str(), other * 1e6, 100 * least / other);
        others[name] = other;
      }
      std::fflush(stdout);
      rows.push_back({{"model", of.name},
                      {"kernel", row.name},
                      {"seconds", seconds},
                      {"bytes", row.bytes},
                      {"flops", row.flops},
                      {"limit_s", least},
                      {"others", others}});
    }
  }
  if (rows.empty()) throw std::runtime_error("no model has '" + only + "' in its name; the models are " + names);
  if (report.empty()) return;
  std::ofstream(report) << nlohmann::json({{"limits", limits.report()}, {"rows", rows}}).dump() << '\n';
}

}  // namespace

int main(int count, char** values) {
  try {
    std::string report, only;
    for (int i = 1; i < count; i += 2) {
      const std::string name = values[i];
      if ((name != "--report" && name != "--model") || i + 1 == count)
        throw std::runtime_error("kernels [--report FILE] [--model NAME]");
      (name == "--report" ? report : only) = values[i + 1];
    }
    bench::prepare();
    const at::NoGradGuard no_grad;
    // As in a run of the Trainer (allocator.keep_freed_memory).
    if (::mallopt(M_MMAP_THRESHOLD, 32 << 20) != 1 || ::mallopt(M_TRIM_THRESHOLD, 1 << 30) != 1)
      throw std::runtime_error("malloc has refused its settings");
    fulgur::detail::keep_large_blocks(true);
    measure(report, only);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
