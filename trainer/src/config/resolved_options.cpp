#include "config/resolved_options.h"

#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/components.h"

namespace fulgur::detail {
namespace {

constexpr int64_t kDefaultEpochs = 1000;

template <class... Parts>
void require(bool holds, const Parts&... message) {
  if (!holds) throw ConfigError(cat(message...));
}

bool is_count_of_training(const Interval& length) {
  const bool counts = length.unit == Interval::Unit::epochs || length.unit == Interval::Unit::steps;
  return counts && length.value >= 1 && length.value == std::floor(length.value);
}

}  // namespace

ResolvedOptions::ResolvedOptions(const TrainerOptions& written, TrainerFn fn, int64_t profile_steps)
    : TrainerOptions(written) {
  if (profile_steps > 0) {
    // A trial run that trains like the run it measures: with its batches and its callbacks, but without loggers.
    max_steps = profile_steps + kProfileWarmup;
    fast_dev_run.batches = max_steps;
    max_epochs = -1;
    stop_after.reset();
    min_epochs.reset();
    min_steps.reset();
    max_time.reset();
    num_sanity_val_steps = 0;
    validate_first = false;
  } else if (fast_dev_run.batches > 0) {
    const int64_t n = fast_dev_run.batches;
    limit_train_batches = limit_val_batches = limit_test_batches = limit_predict_batches = BatchLimit(n);
    max_steps = n;
    max_epochs = 1;
    stop_after.reset();
    min_epochs.reset();
    min_steps.reset();
    num_sanity_val_steps = 0;
    val_check_interval = {};
    check_val_every_n_epoch = 1;
    log_every_n_steps = 1;
  }
  if (barebones) {
    enable_checkpointing = enable_progress_bar = enable_model_summary = detect_anomaly = debug = log_grad_norm = false;
    num_sanity_val_steps = 0;
  }
  if (!overfit_batches.is_zero()) {
    limit_train_batches = overfit_batches;
    if (!limit_val_batches.is_zero()) limit_val_batches = overfit_batches;  // 0: validation is off
  }
  if (profile_steps > 0) limit_val_batches = BatchLimit(0);
  saves_checkpoints = enable_checkpointing && fast_dev_run.batches == 0;
  channels_last = memory_format == MemoryFormat::channels_last;
  if (barebones) on_nonfinite = OnNonFinite::off;
  step_limit = max_steps;
  epoch_limit = max_epochs;
  if (fn != TrainerFn::fit) return;
  has_no_limit = !max_epochs && max_steps < 0 && !max_time;
  if (has_no_limit) epoch_limit = kDefaultEpochs;
  if (epoch_limit && *epoch_limit < 0) epoch_limit.reset();
}

void ResolvedOptions::check(TrainerFn fn, bool automatic_optimization) const {
  require(!min_epochs || !epoch_limit || *min_epochs <= *epoch_limit,
          "[trainer.min_epochs] must not be above max_epochs; got ", min_epochs.value_or(0), " and ",
          epoch_limit.value_or(0), ".");
  require(!min_steps || step_limit < 0 || *min_steps <= step_limit,
          "[trainer.min_steps] must not be above max_steps; got ", min_steps.value_or(0), " and ", step_limit, ".");
  require(!stop_after || is_count_of_training(*stop_after),
          "[trainer.stop_after] the length must be a whole number of epochs or steps, at least 1 (3ep, 500st); got ",
          stop_after ? stop_after->text() : "", ".");
  require(!stop_after || fn != TrainerFn::fit || saves_checkpoints,
          "[trainer.stop_after] a fit that is to be continued needs checkpoints, and enable_checkpointing is false or "
          "barebones is true. Turn checkpoints on, or remove stop_after.");
  require(on_nonfinite != OnNonFinite::rollback || fn != TrainerFn::fit || enable_checkpointing,
          "[trainer.on_nonfinite] a rollback returns to a checkpoint, and enable_checkpointing is false. Turn "
          "checkpoints on, or set on_nonfinite: raise, skip or stop.");
  check_scale_lr();
  require(
      !global_batch_size || accumulate_grad_batches == 1,
      "[trainer.global_batch_size] it decides how many batches make a step, and so does accumulate_grad_batches; got ",
      global_batch_size.value_or(0), " and ", accumulate_grad_batches, ". Remove one of the two.");
  if (fn == TrainerFn::fit && auto_micro_batch) {
    require(!capture,
            "[trainer.auto_micro_batch] a captured step cannot be repeated with smaller batches. Set "
            "one of the two to false.");
    require(!sync_batchnorm,
            "[trainer.auto_micro_batch] sync_batchnorm exchanges inside the forward, where one rank may run out of "
            "memory alone. Set one of the two to false.");
    require(automatic_optimization,
            "[trainer.auto_micro_batch] the module uses manual optimization (automatic_optimization() is false), whose "
            "training_step cannot be repeated. Set it to false, and split the batch in training_step.");
  }
  if (fn != TrainerFn::fit || automatic_optimization) return;
  constexpr std::string_view kManual = "the module uses manual optimization (automatic_optimization() is false), so ";
  require(accumulate_grad_batches == 1, "[trainer.accumulate_grad_batches] ", kManual,
          "the Trainer cannot accumulate; got ", accumulate_grad_batches,
          ". Remove it, and accumulate in training_step.");
  require(!global_batch_size, "[trainer.global_batch_size] ", kManual,
          "the Trainer cannot accumulate. Remove it, and accumulate in training_step.");
  require(!log_grad_norm, "[trainer.log_grad_norm] ", kManual,
          "the Trainer does not know which optimizer's norm to log. Remove it, and log what "
          "clip_gradients(optimizers(i).optimizer(), value) returns.");
  require(!gradient_clip_val, "[trainer.gradient_clip_val] ", kManual,
          "the Trainer cannot clip. Remove it, and call clip_gradients(optimizers(i).optimizer(), value) in "
          "training_step.");
}

}  // namespace fulgur::detail
