#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/contracts/data_module.h"
#include "fulgur/core/contracts/logger.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/contracts/precision.h"
#include "fulgur/core/contracts/profiler.h"
#include "fulgur/core/contracts/strategy.h"
#include "fulgur/trainer/adapters.h"
#include "fulgur/trainer/checkpoint_loading.h"
#include "fulgur/trainer/pretrained_weights.h"

namespace fulgur {

namespace detail {
struct FULGUR_API VerifiedCheckpoint;
}

/// Steps before the first that `profile_steps` measures: memory is allocated, and a graph is captured.
inline constexpr int64_t kProfileWarmup = 8;

/// Components created by the user's program. Callbacks and loggers are added to those that the options name; the
/// default ones are created only if there is no other of their kind. All other components replace those of the options.
struct FULGUR_API TrainerComponents {
  /// Adds a callback. If its class is known at compile time, hooks that it does not override cost nothing.
  template <std::derived_from<Callback> C>
  TrainerComponents& add(std::shared_ptr<C> callback) {
    if constexpr (!std::same_as<C, Callback>) detail::ComponentAccess::find_overridden<Callback>(*callback);
    callbacks.push_back(std::move(callback));
    return *this;
  }

  std::vector<std::shared_ptr<Callback>> callbacks;
  std::vector<std::shared_ptr<Logger>> loggers;
  std::shared_ptr<Strategy> strategy;
  std::shared_ptr<Precision> precision;
  std::shared_ptr<Profiler> profiler;
  /// The config of the run, saved in the run folder and the checkpoints; created from the options if absent.
  std::optional<ConfigNode> config;
  /// Folder of the config file; if it is a run folder, `last` and `best` are looked up in it.
  std::filesystem::path config_folder;
  /// Used for modules that do not plan their own optimizer.
  std::optional<Spec<Optimizer>> optimizer;
  std::optional<Spec<LrScheduler>> lr_scheduler;
  /// Determines when that schedule steps; its `scheduler` is created from `lr_scheduler`.
  SchedulerConfig lr_scheduler_config;
  /// Ids of warnings that `Trainer::prepare_process` silences.
  std::vector<std::string> silence;
  /// The parts that are loaded from a checkpoint.
  CheckpointLoading load;
  /// Weights that the module begins with, in a run without a checkpoint. A module that this Trainer has run before
  /// keeps its weights: `fit(module)`, then `test(module)`.
  PretrainedWeights pretrained = {};
  /// Adapters that the Trainer adds to the module, which keeps them afterwards, with its other parameters frozen.
  std::optional<Adapters> adapters = {};
  /// Seed of loaders and generators. With nullopt, the process's random state is used as it is.
  std::optional<uint64_t> seed;
  /// The checkpoint that `agree_with_checkpoint` has read. The first fit takes it from here if it loads this one.
  std::shared_ptr<detail::VerifiedCheckpoint> verified_checkpoint = {};
  /// The run is a trial of something, such as of a batch size: nothing is printed about how it starts, ends or fails.
  /// Callbacks of the module that write checkpoints, read a metric or plan batch sizes are left out, and a schedule
  /// whose metric is missing does not step.
  bool is_trial = false;
  /// A fit begins again in the folder of the version that a logger names, if another fit ended there before its first
  /// checkpoint; otherwise a folder that exists is an error.
  bool begins_again = false;
  /// If not 0, a fit is a trial run that measures this many steps after a warm-up of `kProfileWarmup`, and then prints
  /// what bounds it (`trainer fit --profile N`). It neither validates nor leaves any file. It measures by itself:
  /// `profiler` and `trainer.profiler` are not used. The other verbs do not depend on it.
  int64_t profile_steps = 0;
};

/// The source of the data: a DataModule, or plain loaders.
struct FULGUR_API DataSource {
  std::shared_ptr<DataModule> module;
  Loaders train, validation, test, predict;
  /// The function for which the data module's `prepare_data` and `setup` have been called, with the checkpoint's state.
  /// The Trainer does not call them again.
  std::optional<TrainerFn> set_up_for = {};
  DataSource() = default;
  DataSource(std::shared_ptr<DataModule> data) : module(std::move(data)) {}
  /// A data module whose class is known at compile time: unless it overrides a transfer hook, its batches are
  /// prefetched to the device.
  template <std::derived_from<DataModule> D>
  requires(!std::same_as<D, DataModule>) DataSource(std::shared_ptr<D> data) : module(data) {
    detail::ComponentAccess::find_overridden<DataModule>(*data);
  }
  DataSource(std::shared_ptr<Loader> train_loader, Loaders validation_loaders = {})
      : train{std::move(train_loader)}, validation(std::move(validation_loaders)) {}
  template <std::derived_from<Loader> L>
  requires(!std::same_as<L, Loader>) DataSource(std::shared_ptr<L> train_loader, Loaders validation_loaders = {})
      : DataSource(std::shared_ptr<Loader>(std::move(train_loader)), std::move(validation_loaders)) {}
};

/// A choice of a checkpoint: `last`, `best`, a path, or (for fit) `auto`, as for `--ckpt_path`.
using CheckpointChoice = std::optional<std::string>;

}  // namespace fulgur
