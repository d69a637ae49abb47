#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "config/resolved_options.h"
#include "fulgur/checkpoint/adapters.h"
#include "fulgur/core/contracts/batch_size_plan.h"
#include "fulgur/core/contracts/data_module.h"
#include "fulgur/core/contracts/logger.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/step_judge.h"
#include "fulgur/core/contracts/strategy.h"
#include "fulgur/core/state/batch.h"
#include "fulgur/core/state/progress.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/nn/lora.h"
#include "fulgur/trainer/components.h"
#include "logging/log_store.h"
#include "logging/metric_store.h"
#include "profiling/actions.h"
#include "run/callback_list.h"
#include "run/callback_states.h"
#include "run/step_state.h"
#include "services/seen_counts.h"

namespace fulgur::detail {

/// The run as it was before a training batch, or before the hooks of an epoch's start or end, for a checkpoint that an
/// exception in them causes: the values that they logged, the random numbers that they drew, and their effects on
/// gradients, buffers and callbacks cannot be separated from the rest. `take_rewind_point` takes it.
struct RewindPoint {
  Progress counters;
  SeenCounts::Mark seen;
  LogStore::Mark logs;
  MetricStore::Mark metrics;
  StateTree rng;
  StateTree::List loaders;  ///< where the training loaders were, for a checkpoint: they are not moved back
  CallbackStates callbacks;
  std::optional<StateTree> loggers;
  std::vector<std::pair<Tensor, Tensor>> buffers, gradients;  ///< with their values, by parameter
  int64_t window_length, window_done, window_losses;
  int64_t logged_step;
  double batch_samples;
};

/// Loaders of one stage with their numbers of batches after limits.
struct StageLoaders {
  Loaders loaders;
  std::vector<std::optional<int64_t>> batches;  ///< nullopt: unknown until the loader ends
  std::vector<bool> sized;                      ///< whether the loader knows its length, on all ranks
  /// The sum over all loaders; nullopt if one is unknown.
  std::optional<int64_t> total() const;
};

/// The batch sizes that a callback plans for a fit.
struct PlannedBatches {
  BatchSizePlan plan;
  int64_t own = 1;                                     ///< the batch size of the loader
  std::map<int64_t, std::optional<int64_t>> of_epoch;  ///< batches of an epoch, after limits, by batch size
};

/// The window of gradient accumulation under way.
struct AccumulationWindow {
  int64_t length = 0;  ///< in batches
  int64_t done = 0;    ///< batches of the window that are done
  int64_t losses = 0;  ///< done batches that had a loss
  int64_t target = 1;  ///< length of the windows that follow
  void restart() { done = losses = 0; }
};

/// Where the loops are.
struct RunPosition {
  RunningStage stage = RunningStage::train;
  bool setting_up = true;  ///< the loops have not begun
  bool sanity_checking = false;
  int64_t batch_idx = 0;
  double batch_samples = 1;
  int64_t loader_idx = 0, loader_count = 1;
  Batch batch;                       ///< the training batch under way
  bool in_batch = false;             ///< still true after an exception in the batch
  const Batch* evaluated = nullptr;  ///< the batch of an evaluation under way
  int64_t samples_before = 0;        ///< this rank's samples of the loader before that batch
  bool reads_in_turns = false;       ///< in predict: the rank's i-th sample is number i × world_size + rank
  /// The part of a batch's work being executed, such as `training_step`; still set after an exception.
  const char* doing = nullptr;
  std::optional<int64_t> reading;     ///< the batch being requested from a loader; still set after an exception
  std::string failed_in;              ///< the place of an exception that ended an evaluation
  CallbackFilter::Position filtered;  ///< the step and epoch to which the hooks under way belong, in a fit
  /// Calls `work`, which is what the run is `doing`; still after an exception.
  template <class Work>
  void during(const char* name, Work work) {
    doing = name;
    work();
    doing = nullptr;
  }
};

struct ValidationState {
  bool runs = false;      ///< in this fit
  bool pending = false;   ///< due or under way
  int64_t ended_at = -1;  ///< training batches before the last validation that ended
  int64_t batches = 0;    ///< of evaluations that ended, over the run
  /// Names of metrics after the first validation or sanity check of this process; nullopt before.
  std::optional<std::vector<std::string>> logged;
  /// `batches` before the current or interrupted validation of a fit, which a resume repeats.
  std::optional<int64_t> batches_before;
  /// The states of callbacks before a validation that has failed.
  std::optional<CallbackStates> callbacks_before;
};

struct RunTimes {
  double fit_started_s = 0;
  double waited_for_data_s = 0;
  mutable bool counts_data_wait = false;  ///< set on first use: reading the clock costs 0.1 µs each time
};

/// A hook of batches, with its name for the profiler.
struct NamedHook {
  Hook hook;
  const char* name;
};

/// Adds its lifetime to the time that the run waited for data, if that time is in use.
class DataWait {
 public:
  explicit DataWait(RunTimes& times) : times_(times) {
    if (times.counts_data_wait) began_ = std::chrono::steady_clock::now();
  }
  ~DataWait() {
    if (began_)
      times_.waited_for_data_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - *began_).count();
  }
  DataWait(const DataWait&) = delete;
  DataWait& operator=(const DataWait&) = delete;

 private:
  RunTimes& times_;
  std::optional<std::chrono::steady_clock::time_point> began_;
};

/// The number of batches that were captured, and why others were not.
struct CapturedCounts {
  int64_t batches = 0;
  std::optional<std::string> refused;
  bool step_has_effects = false;  ///< a step that would be captured has printed, or logged media or artifacts
  int64_t effects = 0;            ///< of the step that is recorded, if it is executed meanwhile
  int64_t effects_done = 0;       ///< of the step that runs, which a recording that was broken off has begun
};

/// Why such a step is not captured, for display.
inline constexpr const char* kEffectsInStep =
    "the step prints, or logs media or artifacts, which a captured step would do only once. Do this in "
    "on_train_batch_end, which runs in every step";

/// An object that decides whether a step is made, with the callback that has registered it; nullptr if none has.
struct RegisteredJudge {
  StepJudge* judge;
  const Callback* owner;
};

/// The facts about the origin of the run that checkpoints and reports record.
struct RunDescription {
  ConfigNode config;  ///< resolved
  std::string config_hash;
  std::string devices;  ///< `1 × cpu`
  int64_t threads = 1;
};

/// The state of one run: its components and where it is. Services act on it (services.h), and modules and callbacks see
/// it through a RunContext.
struct RunState {
  RunState(const TrainerOptions& written, const TrainerComponents& trainer_components, TrainerFn trainer_fn);
  ~RunState();
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  /// Calls `function` on each callback, in order. Logging inside has scope `scope`. The profiler shows the time as that
  /// of `hook`.
  template <class Function>
  void each_callback(LogScope scope, const char* hook, Function function);
  /// Only on callbacks whose filter passes the current step and epoch: for the hooks of epochs and validations.
  template <class Function>
  void each_due_callback(LogScope log_scope, const char* hook, Function function) {
    each_due_callback(log_scope, hook, function, [](const Callback&) { return true; });
  }
  /// Only those of them that `concerns` returns true for.
  template <class Function, class Predicate>
  void each_due_callback(LogScope scope, const char* hook, Function function, Predicate concerns);
  /// Likewise for the hooks of batches: only on callbacks that override the hook.
  template <class Function>
  void each_callback(LogScope scope, NamedHook hook, Function function);
  bool is_due(const Callback& callback) const {
    if (fn != TrainerFn::fit || !callback.filter().is_set()) return true;
    if (!callback.filter().passes(position.filtered)) return false;
    let_through.insert(&callback);
    return true;
  }

  /// A judge of a callback whose filter does not pass sees no losses and decides nothing.
  bool is_due(const RegisteredJudge& judge) const { return !judge.owner || is_due(*judge.owner); }

  /// The current position, for display: stage, epoch, batch with its shapes, step.
  std::string describe_position() const;
  /// The same, with the hook or callback that is running or that an exception came from.
  std::string place_of_failure() const;
  /// Whether a user's hook is running, or was ended by an exception.
  bool in_hook() const { return callbacks.running() || position.doing; }
  /// Whether a requested stop may happen: it waits for min_epochs and min_steps.
  bool may_stop() const;
  /// Requests a stop; only the first request counts.
  void request_stop(std::string reason);
  int64_t rank() const { return strategy->rank(); }
  int64_t world_size() const { return strategy->world_size(); }
  /// Number of shares of the training data; several ranks may train on one.
  int64_t data_shares() const { return strategy->data_shares(); }
  bool is_global_zero() const { return rank() == 0; }
  at::Device device() const { return strategy->device(); }
  Collectives& collectives() const { return strategy->collectives(); }
  /// Prints a line on rank 0.
  void print(std::string_view line) const;
  bool fast_dev_run() const { return options.fast_dev_run.batches > 0; }
  /// The run only measures a few steps (`trainer fit --profile`); it is a trial run too.
  bool is_profile() const { return fn == TrainerFn::fit && components.profile_steps > 0; }
  std::vector<OptimizerHandle*> optimizer_handles() const;
  /// What is appended to the name of a logged value: the number of its loader if there are several.
  std::string loader_suffix(const LogOptions& log_options) const;
  /// A row of step metrics is due.
  bool is_logging_step() const;

  const TrainerFn fn;
  const ResolvedOptions options;
  const TrainerComponents components;
  /// The Trainer has run this module before: pretrained weights would replace what it has learned.
  bool keeps_weights = false;
  std::optional<AdapterRecord> adapters;            ///< of the module
  std::vector<nn::LoraWeights::Layer> lora_layers;  ///< those of LibTorch's, which compute with them inside LoraWeights
  CheckpointLoading load;        ///< what is loaded from a checkpoint; from an imported one, only the weights
  std::optional<uint64_t> seed;  ///< rank 0's
  Progress counters;
  std::shared_ptr<LightningModule> model;
  /// Copies of the module on other devices, each with its `ReplicaContext`.
  std::vector<std::pair<std::shared_ptr<LightningModule>, std::unique_ptr<RunContext>>> replicas;
  DataSource data;
  std::shared_ptr<Strategy> strategy;
  CallbackList callbacks;
  std::vector<std::shared_ptr<Logger>> active_loggers;
  /// The same, in the same order; one that may block is behind its thread. The run logs to these.
  std::vector<std::shared_ptr<Logger>> log_targets;
  OptimizerPlan plan;
  double lr_factor = 1;  ///< the factor of scale_lr that the rates include
  std::vector<std::unique_ptr<OptimizerHandle>> handles;
  std::unordered_set<const void*> parameters_at_start;  ///< the module's, when its optimizers were created
  std::map<RunningStage, StageLoaders> stages;
  std::optional<PlannedBatches> batch_sizes;
  int64_t last_batch_size = 0;       ///< of the last epoch that began with planned batches; 0: none
  int64_t last_window = 0;           ///< planned batches of the last window that began in this process; 0: none
  int64_t own_batch_size_saved = 0;  ///< `PlannedBatches::own` in the checkpoint that was loaded; 0: unknown
  std::function<void(RunningStage)> reload_loaders;  ///< recreates the loaders of a stage
  /// The position of the run when its training loaders were created: a resume creates them for that position.
  StateTree loaders_created_at;
  mutable std::unordered_set<const Callback*> let_through;  ///< whose filter has passed a step or epoch of this process
  std::vector<RegisteredJudge> judges;
  bool updates_batch_norm = false;        ///< on_train_end recomputes the statistics of batch norms, which takes long
  std::optional<int> ended_in_train_end;  ///< the signal that has ended this
  bool tokens_unknown = false;  ///< num_tokens returned nothing, which is learned late if the module's class is unknown
  bool remembers_batches = false;           ///< a callback may save on an exception
  std::optional<RewindPoint> rewind_point;  ///< of the batch or the hooks under way, if one may
  bool rewound = false;                     ///< an exception has taken the run back to that point
  /// Where the training loaders were when training ended, if they have been read again since.
  std::optional<StateTree::List> loaders_at_end;
  /// What loggers had written before the work that a resume repeats; nullopt: it repeats nothing.
  std::optional<StateTree> loggers_before;

  RunPosition position;
  AccumulationWindow window;
  /// Batches of a window by the options: accumulate_grad_batches, or what global_batch_size makes of it.
  int64_t accumulation = 1;
  StepState step;
  ValidationState validation;
  RunTimes times;
  Actions actions;
  CapturedCounts captured;             ///< of training
  CapturedCounts captured_evaluation;  ///< of validation, test or predict
  int64_t logged_step = 0;             ///< global step of the last step row
  /// Most samples of a rank that a training step computes at once, with auto_micro_batch; 0: the whole batch.
  int64_t micro_batch_samples = 0;
  LogScope scope = LogScope::forbidden;
  std::optional<std::string> stop_reason;
  bool checkpoints_allowed = true;
  bool failed_alone = false;  ///< the other ranks do not know of this rank's exception: nothing more is exchanged
  std::filesystem::path run_dir;
  RunDescription description;
};

/// Sets the meaning of `log()` during its lifetime.
class ScopeGuard {
 public:
  /// What is muted stays so in the hooks inside.
  ScopeGuard(RunState& run, LogScope scope) : run_(run), before_(run.scope) {
    if (before_ != LogScope::muted) run.scope = scope;
  }
  ~ScopeGuard() { run_.scope = before_; }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  RunState& run_;
  LogScope before_;
};

template <class Function>
void RunState::each_callback(LogScope log_scope, const char* hook, Function function) {
  const ScopeGuard guard(*this, log_scope);
  callbacks.each([&](Callback& callback) {
    const auto timer = actions.time(typeid(callback), hook);
    function(callback);
  });
}

template <class Function, class Predicate>
void RunState::each_due_callback(LogScope log_scope, const char* hook, Function function, Predicate concerns) {
  const ScopeGuard guard(*this, log_scope);
  callbacks.each([&](Callback& callback) {
    if (!concerns(callback) || !is_due(callback)) return;
    const auto timer = actions.time(typeid(callback), hook);
    function(callback);
  });
}

template <class Function>
void RunState::each_callback(LogScope log_scope, NamedHook hook, Function function) {
  if (!callbacks.any_overrides(hook.hook)) return;
  const ScopeGuard guard(*this, log_scope);
  callbacks.each(hook.hook, [&](Callback& callback) {
    if (!is_due(callback)) return;
    const auto timer = actions.time(typeid(callback), hook.name);
    function(callback);
  });
}

}  // namespace fulgur::detail
