#include "tuning/batch_trial.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>

#include "fulgur/callbacks/batch_size_scheduler.h"
#include "fulgur/callbacks/weight_averaging.h"
#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "prepared_run.h"
#include "tuning/tuned_config.h"

namespace fulgur::cli {
namespace {

/// Remembers the devices of the run, and its largest batch.
class WatchBatches final : public Callback {
 public:
  void on_train_start(RunContext& run) override { devices = run.devices(); }
  void on_train_batch_start(RunContext&, const Batch& batch, int64_t) override {
    largest = std::max(largest, batch.size());
  }
  std::vector<at::Device> devices;
  int64_t largest = 0;
};

// Whether a callback makes optimizer steps of several batches at some time.
bool accumulates(const Spec<Callback>& callback) {
  const auto* const sizes = options_of<BatchSizeScheduler>(callback, "BatchSizeScheduler");
  return callback.class_path() == "GradientAccumulationScheduler" ||
         (sizes != nullptr && sizes->by == BatchSizeBy::accumulation);
}

// The average is memory of a whole run, whichever steps it follows; here it exists from the first step on.
Spec<Callback> averaging_of_trial(const WeightAveraging::Options& of_run) {
  Spec<Callback> averaging("WeightAveraging");
  *options_of<WeightAveraging>(averaging, "WeightAveraging") = {.every = Interval{1, Interval::Unit::steps},
                                                                .use_buffers = of_run.use_buffers,
                                                                .update_bn = false,
                                                                .copy_at_end = false};
  return averaging;
}

Config config_of_trial(const Config& config, int64_t batch_size, int64_t steps) {
  Config trial = trial_config(config);
  TrainerOptions& trainer = trial.trainer;
  set_batch_size(trial, batch_size);
  trainer.max_steps = steps;
  trainer.max_epochs = steps;  // an epoch has at least one step, unless no batch has a loss
  // Gradients of an earlier batch are in memory from the second batch of a window on.
  const bool several_batches = trainer.accumulate_grad_batches > 1 || trainer.global_batch_size ||
                               std::ranges::any_of(config.trainer.callbacks, accumulates);
  trainer.accumulate_grad_batches = several_batches ? 2 : 1;
  trainer.global_batch_size.reset();
  std::erase_if(trainer.callbacks, accumulates);
  for (const Spec<Callback>& callback : config.trainer.callbacks)
    if (const auto* const averaging = options_of<WeightAveraging>(callback, "WeightAveraging"))
      trainer.callbacks.push_back(averaging_of_trial(*averaging));
  trainer.auto_micro_batch = false;
  // Validation after the last step, when the optimizer's state exists.
  if (!trainer.limit_val_batches.is_zero()) trainer.limit_val_batches = BatchLimit(steps);
  trainer.check_val_every_n_epoch.reset();
  trainer.val_check_interval = ValCheckInterval(*Interval::parse(cat(steps, "st")));
  return trial;
}

}  // namespace

BatchTrialReport try_batch_size(const Config& config, int64_t batch_size, int64_t steps, bool several) {
  const auto watch = std::make_shared<WatchBatches>();
  BatchTrialReport report;
  {
    TrainerComponents components;
    components.is_trial = true;
    components.add(watch);
    const Config trial = config_of_trial(config, batch_size, steps);
    PreparedRun run = prepare(trial, TrainerFn::fit, several, std::move(components));
    try {
      const FitReport fit = run.trainer.fit(run.module, run.data, trial.ckpt_path);
      if (fit.exit_code == ExitCode::interrupted || fit.exit_code == ExitCode::terminated)
        throw Error("[tune.batch_size] a signal has ended the trial.", fit.exit_code);
      // The peak of a device counts, not that of the process which drives it.
      for (const PeakMemory& peak : fit.peak_memory) {
        const bool replaces = report.device.empty() || (report.device == "cpu" && peak.device != "cpu") ||
                              ((report.device == "cpu") == (peak.device == "cpu") && peak.bytes > report.peak_bytes);
        if (!replaces) continue;
        report.peak_bytes = peak.bytes;
        report.device = peak.device;
      }
      if (watch->largest < batch_size) report.result = BatchTrial::no_such_batch;
    } catch (const c10::OutOfMemoryError&) {
      report.result = BatchTrial::out_of_memory;
    }
  }
  // Now that no tensor of the trial is left.
  for (const at::Device& device : watch->devices) release_cached_memory(device);
  return report;
}

}  // namespace fulgur::cli
