#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fulgur::detail {

/// What a training batch costs: means in seconds, of the thread of the run unless something else is said.
struct StepCosts {
  int64_t steps = 0;         ///< measured training batches
  double step_s = 0;         ///< from one batch to the next, with the device's work
  double data_s = 0;         ///< waits for the loader
  double transfer_s = 0;     ///< moving the batch to the device
  double compute_s = 0;      ///< forward, backward, clipping, optimizer; on a GPU the launches of their kernels
  double device_wait_s = 0;  ///< waits for a GPU that is behind
  double exchange_s = 0;     ///< backward waits for the gradients of other ranks; on a GPU, the GPU waits
  double callbacks_s = 0;    ///< hooks of callbacks; a profile has no loggers
  std::string slowest_hook;  ///< of a callback: `ProgressBar.on_train_batch_end`; empty if there is none
  double slowest_hook_s = 0;
  double samples = 0;  ///< of a batch of all ranks
};

/// The settings that advice depends on.
struct RunTraits {
  bool on_cpu = true;
  bool captures = false;    ///< `capture`
  bool can_capture = true;  ///< the device and the run allow it
  int64_t ranks = 1;
  int64_t threads = 1, cores = 1;
  std::optional<int64_t> num_workers;  ///< of the data module; nullopt: unknown or auto
  int64_t accumulate_grad_batches = 1;
  std::string precision = "32-true";
  bool has_images = false;  ///< a parameter has four dimensions, as the kernel of a convolution
  bool channels_last = false, high_matmul_precision = false;
  bool compresses_gradients = false, finds_unused_parameters = false;
  bool has_buckets = true;  ///< gradients are exchanged in buckets while backward computes
};

enum class Bound { data, host, device, exchange, nothing };

/// What to try, as options of the config.
struct Advice {
  std::string reason, yaml;
};

/// What bounds a run. The shares are those of the time of a step that would be saved if the part took no time.
struct Bottleneck {
  Bound bound = Bound::nothing;
  double data = 0, host = 0, device = 0, exchange = 0;  ///< shares, which add up to at most 1
  bool launches = false;  ///< the host is slower than the GPU, mostly because it launches kernels
  std::vector<Advice> advice;
};

/// The rules of `trainer fit --profile`. A part bounds a run if it has at least half of the time of a step. There is
/// advice for each part that has at least a fifth.
///
/// On the CPU, the parts follow each other in the thread of the run. On a GPU, a host that waits for the device at
/// least 5 % of the time is faster than it, and then the device bounds the run. If it does not wait, the device waits
/// for the host, and the time is that of the host: it waits for the loader, or it works.
Bottleneck find_bottleneck(const StepCosts& costs, const RunTraits& run);

/// The costs, the verdict and the advice, for people.
std::string bottleneck_text(const Bottleneck& found, const StepCosts& costs, const RunTraits& run);

}  // namespace fulgur::detail
