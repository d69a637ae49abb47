#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/callback.h"

namespace fulgur {

/// Logs memory and load after the training batches whose metrics are written, and reads nothing in the others. Keys
/// begin with `DeviceStatsMonitor.on_train_batch_end/`:
///
/// - of a CUDA device, from the counters of its caching allocator, without synchronizing: `allocated_bytes`,
///   `peak_allocated_bytes`, `reserved_bytes`, `peak_reserved_bytes`, `alloc_retries`, `ooms`;
/// - of the CPU: `cpu_percent` (of one core, all threads of the process, since the previous row), `resident_bytes` of
///   the process, `memory_percent` (unavailable memory of the machine).
///
/// With several ranks the values are rank 0's. Deviations from Lightning: no second row at the batch's start; CPU keys
/// describe the process, not the machine; counters have different names.
class FULGUR_API DeviceStatsMonitor final : public Callback {
 public:
  struct FULGUR_API Options {
    std::optional<bool> cpu_stats = {};
    std::vector<std::string> filter_keys = {};
    void fields(Fields& f);
  };
  /// Throws a ConfigError for an unknown key.
  explicit DeviceStatsMonitor(Options options);

  void on_train_start(RunContext& run) override;
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) override;

 private:
  void log(RunContext& run, const char* key, double value, const std::string& of_device = {}) const;

  Options options_;
  bool of_device_ = false, of_cpu_ = true;
  std::chrono::steady_clock::time_point read_at_;
  double cpu_seconds_ = 0;
};

}  // namespace fulgur
