#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fulgur/core/contracts/callback.h"

namespace fulgur {

/// Logs the training throughput, for each window of `window_size` batches:
///
/// - `device/batches_per_sec`, `device/samples_per_sec`, and `device/tokens_per_sec` if the module defines
///   `num_tokens`;
/// - `device/flops_per_sec` if `flops_per_sample` is set, and `device/mfu`, its fraction of the peak, if that is known;
/// - `data_wait_share`: the fraction of the time (0 to 1) that the loop waited for the loader;
/// - with several ranks the same with `global/` for all of them together, and `data_wait_share` as their mean.
///
/// A row has the mean of the windows that ended since the last one, `device/` of rank 0. Validation does not count, nor
/// does the first batch, which warms up. A CUDA device is timed with events on its stream, without synchronizing: a
/// window is logged when the next one ends. On the CPU the clock is used, and a window is logged at once.
///
/// Deviations from Lightning: training only, so names have no `train/` prefix; batch size and length come from the run;
/// `flops_per_sample` and `peak_flops` instead of a function and `available_flops`; no synchronization.
class FULGUR_API ThroughputMonitor final : public Callback {
 public:
  struct FULGUR_API Options {
    int64_t window_size = 100;
    std::string separator = "/";
    std::optional<double> flops_per_sample = {};  ///< floating-point operations of forward and backward for a sample
    std::optional<double> peak_flops = {};        ///< peak FLOP/s of one device
    void fields(Fields& f);
  };
  /// Throws a ConfigError for a peak without FLOPs to compare with it.
  explicit ThroughputMonitor(Options options);
  ~ThroughputMonitor() override;

  void on_train_start(RunContext& run) override;
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) override;
  void on_validation_start(RunContext& run) override;
  void on_validation_end(RunContext& run) override;
  void on_train_end(RunContext& run) override;

 private:
  struct Window;
  struct Measuring;
  void log(RunContext& run, const Window& window) const;
  void find_peak(RunContext& run);

  Options options_;
  std::optional<double> peak_;
  std::unique_ptr<Measuring> measuring_;
};

}  // namespace fulgur
