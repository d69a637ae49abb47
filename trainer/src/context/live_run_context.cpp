#include "context/live_run_context.h"

#include <ATen/ops/arange.h>

#include <algorithm>

#include "fulgur/core/device/moved_to.h"
#include "fulgur/core/device/recorded_step.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "run/all_loggers.h"
#include "run/batch_sizes.h"

namespace fulgur::detail {

std::optional<int64_t> LiveRunContext::num_batches(RunningStage stage) const {
  const auto found = state_.stages.find(stage);
  if (found == state_.stages.end()) return 0;
  if (state_.position.sanity_checking && stage == RunningStage::validate && state_.options.num_sanity_val_steps >= 0) {
    int64_t sum = 0;
    for (const auto& count : found->second.batches)
      sum += std::min(count.value_or(state_.options.num_sanity_val_steps), state_.options.num_sanity_val_steps);
    return sum;
  }
  return found->second.total();
}

Tensor LiveRunContext::gather(const Tensor& parameter) {
  const auto is_it = [&](const Tensor& tensor) { return tensor.is_same(parameter); };
  if (!std::ranges::any_of(state_.model->parameters(), is_it))
    throw Error(
        "[trainer.gather] run.gather needs a parameter of the module, as named_parameters() gives it; got another "
        "tensor, such as a gradient or a view. Take views of the result; norms of gradients are in "
        "docs/custom_components.md.");
  if (parameter.is_meta() && state_.strategy->device().type() != at::kMeta)
    throw Error(
        "[trainer.gather] this parameter has no values yet: they are computed when the module is divided among the "
        "ranks. Call run.gather in on_fit_start or later, or set deferred_init: false in the strategy's options.");
  return state_.strategy->gather(parameter);
}

Tensor LiveRunContext::sample_indices() const {
  const RunPosition& position = state_.position;
  if (position.stage != RunningStage::predict || !position.evaluated || !position.reads_in_turns) return {};
  const int64_t first = position.samples_before, count = position.evaluated->size();
  return at::arange(first, first + count, at::TensorOptions(at::kLong)) * world_size() + rank();
}

std::optional<int64_t> LiveRunContext::estimated_steps() const {
  std::optional<int64_t> steps;
  if (state_.options.epoch_limit)
    steps = steps_of_epochs(state_, *state_.options.epoch_limit, num_batches(RunningStage::train));
  if (state_.options.step_limit >= 0)
    steps = steps ? std::min(*steps, state_.options.step_limit) : state_.options.step_limit;
  return steps;
}

int64_t LiveRunContext::num_loaders(RunningStage stage) const {
  const auto found = state_.stages.find(stage);
  return found == state_.stages.end() ? 0 : static_cast<int64_t>(found->second.loaders.size());
}

std::optional<double> LiveRunContext::progress_fraction() const {
  std::optional<double> part;
  const auto at_least = [&](double done, double all) { part = std::max(part.value_or(0), done / all); };
  // Measured in batches, since the number of batches per step may change.
  const auto batches = num_batches(RunningStage::train);
  if (state_.options.epoch_limit && *state_.options.epoch_limit > 0 && batches && *batches > 0)
    at_least(state_.counters.epochs_done(batches), static_cast<double>(*state_.options.epoch_limit));
  if (state_.options.step_limit > 0)
    at_least(static_cast<double>(state_.counters.global_step), static_cast<double>(state_.options.step_limit));
  if (state_.options.max_time) part = std::max(part.value_or(0), fit_time_s() / state_.options.max_time->value);
  if (part) part = std::min(*part, 1.0);
  return part;
}

bool LiveRunContext::logs() const {
  if (state_.scope == LogScope::muted) return false;
  if (state_.options.barebones) log::warn("trainer.barebones_log", "log() does nothing in a barebones run");
  return !state_.options.barebones;
}

template <class Value>
void LiveRunContext::log_value(std::string_view name, const Value& value, const LogOptions& log_options) {
  if (!logs()) return;
  // A value from an epoch hook does not belong to the samples of the last batch: all ranks get the same weight.
  const bool of_epoch = state_.scope == LogScope::train_epoch || state_.scope == LogScope::evaluation_epoch;
  const double weight = log_options.batch_size ? static_cast<double>(*log_options.batch_size)
                        : of_epoch             ? 1
                                               : state_.position.batch_samples;
  if (const std::string suffix = state_.loader_suffix(log_options); !suffix.empty())
    return services_.logs.log(cat(name, suffix), state_.scope, state_.position.stage, value, weight, log_options);
  services_.logs.log(name, state_.scope, state_.position.stage, value, weight, log_options);
}

void LiveRunContext::log(std::string_view name, const Tensor& value, const LogOptions& log_options) {
  // A metric is accumulated in one place, wherever its values come from.
  const bool elsewhere = !value.is_cpu() && value.defined() && value.device() != device();
  log_value(name, elsewhere ? detail::moved_to(value.detach(), device()) : value, log_options);
}

void LiveRunContext::log(std::string_view name, double value, const LogOptions& log_options) {
  log_value(name, value, log_options);
}

void LiveRunContext::log(std::string_view name, Metric& metric, const LogOptions& log_options) {
  if (logs())
    services_.metrics.log(cat(name, state_.loader_suffix(log_options)), state_.scope, state_.position.stage, metric,
                          log_options);
}

bool LiveRunContext::sends(const char* function) const {
  if (!logs() || state_.position.sanity_checking) return false;
  if (state_.position.setting_up)
    throw Error(cat("[trainer.", function, "] loggers start after all setup hooks; ", function,
                    " was called before. Call it from on_fit_start, or a later hook."));
  return true;
}

bool LiveRunContext::begin_effect() {
  CapturedCounts& counts = state_.position.stage == RunningStage::train ? state_.captured : state_.captured_evaluation;
  if (services_.logs.is_recording()) {
    // On a GPU, a step that is recorded is not executed.
    if (!is_recording_cpu_step()) throw Error(std::string(kEffectsInStep));
    ++counts.effects;
    return true;
  }
  if (services_.logs.is_noting()) state_.captured.step_has_effects = true;
  if (counts.effects_done == 0) return true;
  --counts.effects_done;
  return false;
}

void LiveRunContext::print(std::string_view line) {
  if (begin_effect()) state_.print(line);
}

void LiveRunContext::log_media(const MediaRecord& record) {
  check_media(record);
  if (!sends("log_media")) return;
  if (begin_effect() && !state_.log_targets.empty()) services_.rows.add_media(record);
}

void LiveRunContext::log_artifact(const std::filesystem::path& path) {
  if (!sends("log_artifact")) return;
  if (!begin_effect() || !is_global_zero()) return;
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    throw Error(cat("[trainer.log_artifact] the file or folder must exist; ", path,
                    " does not. Call log_artifact after it was written, on the machine of rank 0."));
  for_all_loggers(state_.log_targets.size(), [&](size_t i) { state_.log_targets[i]->log_artifact(path); });
}

void LiveRunContext::set_accumulation(int64_t count) {
  if (count < 1) throw ConfigError(cat("[trainer.set_accumulation] the count must be at least 1; got ", count, "."));
  state_.window.target = count;
}

void LiveRunContext::judge_steps(StepJudge& judge) {
  state_.judges.push_back({.judge = &judge, .owner = state_.callbacks.running()});
  services_.finite.keep_window_buffers();
}

std::optional<double> LiveRunContext::metric(std::string_view name) {
  if (world_size() > 1) return services_.logs.written(name);
  services_.rows.settle(/*and_act=*/false);
  return services_.logs.newest(name);
}

std::optional<double> LiveRunContext::monitored_metric(std::string_view name) {
  if (state_.failed_alone) return services_.logs.newest(name);
  services_.rows.settle(/*and_act=*/false);
  return services_.logs.monitored(name, collectives());
}

}  // namespace fulgur::detail
