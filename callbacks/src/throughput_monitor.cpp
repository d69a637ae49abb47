#include "fulgur/callbacks/throughput_monitor.h"

#include <ATen/Context.h>

#include <vector>

#include "fulgur/core/device/accelerator.h"
#include "fulgur/core/device/device_clock.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "peak_flops.h"

namespace fulgur {

using detail::DeviceClock;

/// Counts between two batches, and the times that count for them.
struct ThroughputMonitor::Window {
  int64_t batches = 0, samples = 0, tokens = 0;
  double data_wait_s = 0;
  std::vector<std::pair<DeviceClock::Moment, DeviceClock::Moment>> spans;
};

struct ThroughputMonitor::Measuring {
  explicit Measuring(at::Device device) : clock(device), waits_for_device(!device.is_cpu()) {}

  void begin(RunContext& run) {
    window = {};
    const Progress& progress = run.progress();
    batches = progress.batches_total.processed;
    samples = progress.own_samples;
    tokens = progress.own_tokens;
    data_wait_s = run.meters().data_wait_s();
    span_began = clock.now();
    open = true;
  }

  void pause() {
    if (open) window.spans.emplace_back(*span_began, clock.now());
    open = false;
  }

  Window end(RunContext& run) {
    pause();
    const Progress& progress = run.progress();
    window.batches = progress.batches_total.processed - batches;
    window.samples = progress.own_samples - samples;
    window.tokens = progress.own_tokens - tokens;
    window.data_wait_s = run.meters().data_wait_s() - data_wait_s;
    return std::move(window);
  }

  DeviceClock clock;
  bool waits_for_device;
  Window window;
  std::optional<Window> ended;  // not logged yet: the device may not have reached its end
  std::optional<DeviceClock::Moment> span_began;
  bool open = false, began = false, has_logged = false;
  int64_t batches = 0, samples = 0, tokens = 0;
  double data_wait_s = 0;
};

void ThroughputMonitor::Options::fields(Fields& f) {
  f(window_size, "window_size", "Training batches over which a rate is measured.").at_least(1);
  f(separator, "separator", "Separator between `device` or `global` and the name of a rate.");
  f(flops_per_sample, "flops_per_sample",
    "Floating-point operations of forward and backward for one sample; null: FLOP/s are not logged.")
      .greater_than(0);
  f(peak_flops, "peak_flops", "Peak FLOP/s of one device, for mfu; null: from a table of GPUs, by name and precision.")
      .greater_than(0);
}

ThroughputMonitor::ThroughputMonitor(Options options) : options_(std::move(options)) {
  if (options_.peak_flops && !options_.flops_per_sample)
    throw ConfigError(
        "[callbacks.ThroughputMonitor] peak_flops has no effect without flops_per_sample. Set both, or leave it out.");
}

ThroughputMonitor::~ThroughputMonitor() = default;

void ThroughputMonitor::find_peak(RunContext& run) {
  peak_ = options_.peak_flops;
  if (peak_ || !options_.flops_per_sample) return;
  const at::Device device = run.device();
  const auto* accelerator = device.is_cpu() ? nullptr : find_accelerator("cuda");
  const std::string name = accelerator != nullptr ? accelerator->device_name(device.index()) : "cpu";
  const bool tf32 = at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
                    at::Float32Precision::TF32;
  if (const auto kind = detail::matmul_kind(run.meters().precision_name(), tf32))
    peak_ = detail::peak_flops(name, *kind);
  if (!peak_)
    log::warn("throughput_monitor.peak_unknown",
              cat("[callbacks.ThroughputMonitor] the peak FLOP/s of '", name, "' in ", run.meters().precision_name(),
                  " are not known, so mfu is not logged. Set peak_flops."));
}

void ThroughputMonitor::on_train_start(RunContext& run) {
  find_peak(run);
  measuring_ = std::make_unique<Measuring>(run.device());
}

void ThroughputMonitor::on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) {
  Measuring& m = *measuring_;
  if (!std::exchange(m.began, true)) return m.begin(run);
  if (run.progress().batches_total.processed - m.batches < options_.window_size) return;
  Window window = m.end(run);
  m.has_logged |= !m.waits_for_device || m.ended;
  if (!m.waits_for_device)
    log(run, window);
  else if (const auto before = std::exchange(m.ended, std::move(window)))
    log(run, *before);
  m.begin(run);
}

void ThroughputMonitor::on_validation_start(RunContext&) {
  if (measuring_) measuring_->pause();
}

void ThroughputMonitor::on_validation_end(RunContext&) {
  if (!measuring_ || !measuring_->began) return;
  measuring_->span_began = measuring_->clock.now();
  measuring_->open = true;
}

void ThroughputMonitor::on_train_end(RunContext& run) {
  if (measuring_ && measuring_->began && !measuring_->has_logged && !run.log_dir().empty())
    log::warn("throughput_monitor.no_window",
              cat("ThroughputMonitor: no rate was logged, since the training of this process ended before ",
                  measuring_->waits_for_device ? "the second window of " : "the first window of ",
                  counted(options_.window_size, "batch", "batches"), " did. Set a smaller window_size"));
  measuring_.reset();
}

void ThroughputMonitor::log(RunContext& run, const Window& window) const {
  double seconds = 0, host_seconds = 0;
  for (const auto& [from, to] : window.spans) {
    seconds += measuring_->clock.seconds(from, to);
    host_seconds += DeviceClock::host_seconds(from, to);
  }
  if (seconds <= 0 || host_seconds <= 0) return;
  // Each window counts once in a row, regardless of its number of batches.
  const LogOptions own{.batch_size = 1}, of_all{.sync_dist = true, .batch_size = 1};
  const auto ranks = static_cast<double>(run.world_size());
  const auto rate = [&](const char* name, double value, double over_ranks) {
    run.log(cat("device", options_.separator, name), value, own);
    // The total is the mean over ranks of each rank's rate times the number of ranks.
    if (run.world_size() > 1) run.log(cat("global", options_.separator, name), value * over_ranks, of_all);
  };
  rate("batches_per_sec", static_cast<double>(window.batches) / seconds, ranks);
  rate("samples_per_sec", static_cast<double>(window.samples) / seconds, ranks);
  if (run.meters().has_token_counts()) rate("tokens_per_sec", static_cast<double>(window.tokens) / seconds, ranks);
  if (options_.flops_per_sample) {
    const double flops = static_cast<double>(window.samples) * *options_.flops_per_sample / seconds;
    rate("flops_per_sec", flops, ranks);
    // The fraction of the peak of all devices that this process computes on.
    if (peak_) rate("mfu", flops / (*peak_ * static_cast<double>(run.devices().size())), 1);
  }
  run.log("data_wait_share", window.data_wait_s / host_seconds, of_all);
}

[[maybe_unused]] static const bool registered_throughput_monitor = Registry<Callback>::add<ThroughputMonitor>(
    "ThroughputMonitor",
    "Logs batches, samples, tokens and floating-point operations per second, and how long training waits for data.");

}  // namespace fulgur
