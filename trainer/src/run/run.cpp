#include "run/run.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "fulgur/core/let_go.h"
#include "fulgur/core/log.h"
#include "fulgur/core/same_ranks.h"
#include "fulgur/core/text.h"
#include "run/memory_format.h"
#include "run/replica_context.h"
#include "run/signals.h"

namespace fulgur::detail {
namespace fs = std::filesystem;

std::optional<int64_t> StageLoaders::total() const {
  int64_t sum = 0;
  for (const auto& count : batches) {
    if (!count) return std::nullopt;
    sum += *count;
  }
  return sum;
}

Run::Run(const TrainerOptions& trainer_options, const TrainerComponents& trainer_components, TrainerFn fn)
    : options(trainer_options),
      components(trainer_components),
      agreement({.stop_reason = [this] { return stop_reason; },
                 .signal = signals::received,
                 .take_save_request = signals::take_save_request,
                 .save_is_done = [this] { return checkpoints.save_is_done(); }},
                [this](std::string reason) { stop_reason = std::move(reason); }),
      fn_(fn),
      overriding_(static_cast<size_t>(Hook::count_)) {}

Run::~Run() {
  let_go(batch_);
  if (model) model->set_run(nullptr);
  for (auto& [replica, context] : replicas) replica->set_run(nullptr);
}

std::optional<int64_t> Run::num_batches(RunningStage stage) const {
  const auto found = stages.find(stage);
  if (found == stages.end()) return 0;
  if (sanity_checking_ && stage == RunningStage::validate && options.num_sanity_val_steps >= 0) {
    int64_t sum = 0;
    for (const auto& count : found->second.batches)
      sum += std::min(count.value_or(options.num_sanity_val_steps), options.num_sanity_val_steps);
    return sum;
  }
  return found->second.total();
}

std::optional<int64_t> Run::estimated_steps() const {
  std::optional<int64_t> steps;
  const auto batches = num_batches(RunningStage::train);
  if (batches && epoch_limit) steps = (*batches + accumulation_ - 1) / accumulation_ * *epoch_limit;
  if (step_limit >= 0) steps = steps ? std::min(*steps, step_limit) : step_limit;
  return steps;
}

int64_t Run::num_loaders(RunningStage stage) const {
  const auto found = stages.find(stage);
  return found == stages.end() ? 0 : static_cast<int64_t>(found->second.loaders.size());
}

std::vector<Optimizer*> Run::optimizers() {
  std::vector<Optimizer*> all;
  for (const auto& planned : plan.optimizers) all.push_back(planned.optimizer.get());
  return all;
}

std::optional<double> Run::progress_fraction() const {
  std::optional<double> part;
  if (const auto steps = estimated_steps(); steps && *steps > 0)
    part = static_cast<double>(progress_.global_step) / static_cast<double>(*steps);
  if (options.max_time) part = std::max(part.value_or(0), fit_time_s() / options.max_time->value);
  if (part) part = std::min(*part, 1.0);
  return part;
}

std::vector<OptimizerHandle*> Run::optimizer_handles() {
  std::vector<OptimizerHandle*> all;
  for (const auto& handle : handles) all.push_back(handle.get());
  return all;
}

void Run::make_handles() {
  for (const auto& [name, value] : unique_parameters(*model)) parameters_at_start.insert(value.unsafeGetTensorImpl());
  for (const auto& planned : plan.optimizers)
    handles.push_back(std::make_unique<OptimizerHandle>(
        planned.optimizer,
        [this](OptimizerHandle& handle, const Closure& closure) { step_optimizer(handle, closure); }));
}

void Run::step_optimizer(OptimizerHandle& handle, const Closure& closure) {
  if (!in_training_step && !manual)
    throw Error(
        "[trainer.optimizer_step] the module uses automatic optimization: the Trainer steps the optimizer, and a "
        "module may do so only in its optimizer_step hook. Remove step(), or override automatic_optimization() to "
        "return false.");
  if (!in_training_step)
    throw Error(
        "[trainer.optimizer_step] an optimizer is stepped in training_step or in the optimizer_step hook only.");
  step_actions->step_optimizer(handle.optimizer(), closure);
}

void Run::unscale_gradients(Optimizer& optimizer) { strategy->precision().unscale(optimizer); }

void Run::manual_backward(const Tensor& loss, const BackwardOptions& backward_options) {
  if (!manual)
    throw Error(
        "[trainer.manual_backward] the module uses automatic optimization, which does backward itself. Return the "
        "loss, or override "
        "automatic_optimization() to return false.");
  if (!in_training_step) throw Error("[trainer.manual_backward] backward is called in training_step only.");
  step_actions->manual_backward(loss, backward_options);
}

void Run::rewind_to_batch_start() {
  if (!in_batch_) return;
  in_batch_ = false;
  let_go(batch_);
  in_training_step = false;
  if (stepped) {
    // The batch has changed the weights: it counts.
    progress_.batches.processed = progress_.batches.completed = progress_.batches.started;
    progress_.batches_total.processed = progress_.batches_total.completed = progress_.batches_total.started;
  } else {
    progress_.batches.fall_back();
    progress_.batches_total.fall_back();
    seen.fall_back();
    stages[RunningStage::train].loaders.front()->unread();
  }
  // Gradients of the window's earlier batches still count.
  if (!adds_gradients) return;
  // Gradients of an unfinished backward are useless.
  for (auto& [name, value] : unique_parameters(*model)) value.mutable_grad().reset();
  window_done = window_losses = 0;
}

std::string Run::describe_position() const {
  if (setting_up) return "setup";
  std::string text = cat(sanity_checking_ ? "sanity check" : name_of(stage_), ", epoch ", progress_.epoch, ", batch ",
                         reading_.value_or(batch_idx_), ", step ", progress_.global_step);
  if (reading_) return text;
  const Batch* const batch = evaluated_ ? evaluated_ : in_batch_ ? &batch_ : nullptr;
  if (!batch) return text;
  for (const auto& [name, value] : *batch) {
    const auto* tensor = std::get_if<Tensor>(&value);
    if (!tensor || !tensor->defined()) continue;
    std::vector<std::string> sizes;
    for (const int64_t size : tensor->sizes()) sizes.push_back(std::to_string(size));
    text += cat(", ", escape_controls(name), " [", join(sizes), "] ", c10::toString(tensor->scalar_type()));
  }
  return text;
}

std::string Run::place_of_failure() const {
  if (reading_) return cat(describe_position(), ", while the loader reads the batch");
  if (in_callback_) return cat(describe_position(), ", in callback ", in_callback_->state_key());
  return doing_ ? cat(describe_position(), ", in ", doing_) : describe_position();
}

void Run::batch_to_device(Batch& batch, int64_t loader_idx) {
  const HeldBatch as_loaded(batch);  // which a hook may replace
  transfer(batch, loader_idx);
  // After the hooks: what they produce from the batch may be an image too.
  to_memory_format(batch);
}

void Run::transfer(Batch& batch, int64_t loader_idx) {
  strategy->batch_to_device(*model, data.module.get(), batch, loader_idx);
}

void Run::to_memory_format(Batch& batch) const {
  if (channels_last()) to_channels_last(batch);
}

std::vector<LrScheduler*> Run::lr_schedulers() {
  std::vector<LrScheduler*> all;
  for (const auto& planned : plan.optimizers)
    if (planned.scheduler) all.push_back(planned.scheduler->scheduler.get());
  return all;
}

template <class Value>
void Run::log_value(std::string_view name, const Value& value, const LogOptions& log_options) {
  if (muted) return;
  if (options.barebones) return log::warn("trainer.barebones_log", "log() does nothing in a barebones run");
  // A value from an epoch hook does not belong to the last batch's samples: all ranks have the same weight.
  const bool of_epoch = scope_ == LogScope::train_epoch || scope_ == LogScope::evaluation_epoch;
  const double weight = log_options.batch_size ? static_cast<double>(*log_options.batch_size)
                        : of_epoch             ? 1
                                               : batch_samples_;
  const bool of_one_loader = loader_count_ > 1 && stage_ != RunningStage::train &&
                             scope_ == LogScope::evaluation_step && log_options.add_dataloader_idx;
  if (of_one_loader)
    return logs.log(cat(name, "/dataloader_idx_", loader_idx_), scope_, stage_, value, weight, log_options);
  logs.log(name, scope_, stage_, value, weight, log_options);
}

void Run::log(std::string_view name, const Tensor& value, const LogOptions& log_options) {
  // A metric is accumulated in one place, wherever its values come from.
  const bool elsewhere = !value.is_cpu() && value.defined() && value.device() != device();
  log_value(name, elsewhere ? value.detach().to(device(), /*non_blocking=*/true) : value, log_options);
}

void Run::log(std::string_view name, double value, const LogOptions& log_options) {
  log_value(name, value, log_options);
}

void Run::print(std::string_view line) {
  if (is_global_zero()) log::info(line);
}

void Run::set_accumulation(int64_t count) {
  if (count < 1) throw ConfigError(cat("[trainer.set_accumulation] the count must be at least 1; got ", count, "."));
  accumulation_ = count;
}

void Run::request_stop(std::string reason) {
  if (!stop_reason) stop_reason = std::move(reason);
}

bool Run::may_stop() const {
  return progress_.epochs.completed >= options.min_epochs.value_or(0) &&
         progress_.global_step >= options.min_steps.value_or(0);
}

void Run::set_callbacks(std::vector<std::shared_ptr<Callback>> list) {
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a->phase() < b->phase(); });
  callbacks = std::move(list);
  for (auto& hook : overriding_) hook.clear();
  for (size_t h = 0; h < overriding_.size(); ++h)
    for (const auto& callback : callbacks)
      if (callback->overridden().has(static_cast<Hook>(h))) overriding_[h].push_back(callback.get());
}

void Run::check_state_keys() {
  std::set<std::string> keys;
  each_callback(LogScope::forbidden, [&](Callback& callback) {
    const bool stateful = !callback.state().as_map().empty();
    if (stateful && !keys.insert(callback.state_key()).second)
      throw ConfigError(cat("[trainer.callbacks] two callbacks keep state under the key '", callback.state_key(),
                            "'. Make their options differ, or override state_key()."));
  });
}

CheckpointOrigin Run::origin() const {
  CheckpointOrigin origin;
  origin.config_hash = config_hash;
  origin.world_size = world_size();
  origin.device = device_text;
  origin.threads = threads;
  origin.deterministic = options.deterministic.enabled;
  origin.save_counter = checkpoints.saves();
  return origin;
}

StateTree Run::published_metrics() const {
  StateTree metrics;
  for (const auto& [name, value] : logs.published()) metrics[name] = value;
  return metrics;
}

StateTree Run::logger_states() const {
  if (validation_start_) return validation_start_->loggers;
  StateTree::List states;
  for (const auto& logger : active_loggers) {
    StateTree state = nullptr;
    // A checkpoint is complete without logger state; a resume then truncates the logger's files by step.
    try {
      state = logger->state();
    } catch (const std::exception& error) {
      log::error(cat("the state of ", logger->state_key(), " is not in the checkpoint: ", error.what()));
    }
    states.push_back(StateTree::map({{"key", logger->state_key()}, {"state", std::move(state)}}));
  }
  return states;
}

ReplicaContext& Run::replica_context(const LightningModule& replica) {
  const auto found =
      std::find_if(replicas.begin(), replicas.end(), [&](const auto& known) { return known.first.get() == &replica; });
  return *found->second;
}

void Run::act_on_checkpoint_requests() {
  if (checkpoints.has_requests()) settle_same_steps(/*with_all=*/false);
  // A checkpoint comes after the rows of its steps.
  if (checkpoints.has_requests() && !checkpoints.awaits_rows()) rows.settle();
  checkpoints.process_requests();
}

std::optional<double> Run::metric(std::string_view name) {
  if (world_size() > 1) return logs.written(name);
  rows.settle(/*and_act=*/false);
  return logs.newest(name);
}

RowPlace Run::row_place() const {
  // After an epoch's end the values still belong to that epoch.
  const bool between_epochs = stage_ == RunningStage::train && progress_.batches.completed == 0 && progress_.epoch > 0;
  return {.step = progress_.global_step, .epoch = progress_.epoch - (between_epochs ? 1 : 0)};
}

namespace {

// Doubles are exact integers up to here.
constexpr double kMostStep = 9007199254740992;

// The step that a metric sets for its row.
int64_t row_step(double metric, int64_t global_step) {
  if (std::abs(metric) <= kMostStep) return static_cast<int64_t>(metric);
  log::warn("logger.bad_step",
            cat("the metric 'step' gives its row's step, and ", metric,
                " is not a step: the row gets the global step. Log a finite number of at most 2^53"));
  return global_step;
}

}  // namespace

void Run::send_metrics(Metrics metrics, RowPlace place) {
  if (metrics.empty() || sanity_checking_) return;
  // As in Lightning, a metric named "step" sets the row's step, and one named "epoch" replaces the epoch.
  std::erase_if(metrics, [&](const auto& metric) {
    if (metric.first == "step") place.step = row_step(metric.second, place.step);
    return metric.first == "step";
  });
  if (std::none_of(metrics.begin(), metrics.end(), [](const auto& metric) { return metric.first == "epoch"; }))
    metrics.emplace_back("epoch", static_cast<double>(place.epoch));
  for (const auto& logger : active_loggers) logger->log_metrics(metrics, place.step);
}

void Run::flush_step_metrics(RunningStage stage, bool force) {
  bool due = force;
  if (stage == RunningStage::train) {
    due |= is_logging_step();
    if (due) finite.log_counters(), logged_step_ = progress_.global_step;
  } else {
    // Ranks may run different numbers of evaluation batches: they synchronize only at the end.
    const bool at_this = options.log_every_n_steps > 0 && evaluation_batches_ % options.log_every_n_steps == 0;
    due |= at_this && world_size() == 1;
  }
  rows.advance();
  if (due) rows.begin(stage);
  if (force) rows.settle();
}

void Run::check_exchanges() {
  if (world_size() == 1 || device().is_cpu()) return;
  c10::impl::VirtualGuardImpl(device().type()).synchronizeDevice(device().index());
  collectives().check();
}

void Run::check_same_ranks() {
  settle_same_steps(/*with_all=*/true);
  if (world_size() == 1 || std::exchange(same_ranks_at_, progress_.global_step) == progress_.global_step) return;
  auto* const same = dynamic_cast<SameRanks*>(strategy.get());
  if (!same) return;
  const char* const before = std::exchange(doing_, "the comparison of the ranks");
  same->check_same_ranks(*model, optimizer_handles(), progress_.global_step);
  doing_ = before;
}

void Run::check_same_steps() {
  if (world_size() == 1) return;
  settle_same_steps(/*with_all=*/true);
  same_steps_ = collectives().start_max({progress_.global_step, -progress_.global_step});
}

void Run::settle_same_steps(bool with_all) {
  if (!same_steps_) return;
  const std::vector<int64_t> most_and_least = std::exchange(same_steps_, nullptr)->take();
  collectives().check();
  if (most_and_least[0] == -most_and_least[1]) return;
  constexpr const char* kWhatToDo =
      ". An optimizer step depends on a condition that differs between ranks: do not let it depend on the rank, and "
      "all_reduce the values that it depends on.";
  if (!with_all)
    throw DistributedError(cat("[trainer.optimizer_step] all ranks must make the same steps; after epoch ",
                               progress_.epoch, ", batch ", batch_idx_, " they have made ", -most_and_least[1], " to ",
                               most_and_least[0], kWhatToDo));
  std::string own = cat(progress_.global_step);
  for (size_t i = 0; handles.size() > 1 && i < handles.size(); ++i)
    own += cat(i == 0 ? " (" : ", ", handles[i]->steps(), " of optimizer ", i, i + 1 == handles.size() ? ")" : "");
  std::vector<std::string> ranks;
  for (const std::string& steps : collectives().gather_text(own))
    ranks.push_back(cat(steps, " on rank ", static_cast<int64_t>(ranks.size())));
  throw DistributedError(cat("[trainer.optimizer_step] all ranks must make the same steps; after epoch ",
                             progress_.epoch, ", batch ", batch_idx_, " the number of steps is ", join(ranks),
                             kWhatToDo));
}

}  // namespace fulgur::detail
