#pragma once

#include <concepts>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/callback.h"
#include "fulgur/core/data_module.h"
#include "fulgur/core/logger.h"
#include "fulgur/core/module.h"
#include "fulgur/core/strategy.h"
#include "fulgur/trainer/config.h"
#include "fulgur/trainer/reports.h"
#include "fulgur/trainer/trainer_options.h"

namespace fulgur {

/// Components made by the user's program. Callbacks and loggers are added to those that the options name; the default
/// ones are made only if there is no other of their kind. The others take the place of the options'.
struct FULGUR_API TrainerComponents {
  /// Adds a callback whose class is known at compile time: hooks that it does not override cost nothing.
  template <std::derived_from<Callback> C>
  TrainerComponents& add(std::shared_ptr<C> callback) {
    detail::ComponentAccess::find_overridden<Callback>(*callback);
    callbacks.push_back(std::move(callback));
    return *this;
  }

  std::vector<std::shared_ptr<Callback>> callbacks;
  std::vector<std::shared_ptr<Logger>> loggers;
  std::shared_ptr<Strategy> strategy;
  std::shared_ptr<Precision> precision;
  /// The config of the run, saved in the run folder and the checkpoints; created from the options if absent.
  std::optional<ConfigNode> config;
  /// Folder of the config file: if it is a run folder, `last` and `best` are looked up in it.
  std::filesystem::path config_folder;
  /// For modules that do not plan their own optimizer.
  std::optional<Spec<Optimizer>> optimizer;
  std::optional<Spec<LrScheduler>> lr_scheduler;
  /// When that schedule steps; its `scheduler` is created from `lr_scheduler`.
  SchedulerConfig lr_scheduler_config;
  /// What is loaded from a checkpoint.
  CheckpointLoading load;
  /// Seed of loaders and generators; nullopt: the process's random state is used as is.
  std::optional<uint64_t> seed;
};

/// Where data comes from: a DataModule, or plain loaders.
struct FULGUR_API DataSource {
  std::shared_ptr<DataModule> module;
  Loaders train, validation, test, predict;
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

/// `last`, `best`, a path, or (for fit) `auto`, as for `--ckpt_path`.
using CheckpointChoice = std::optional<std::string>;

/// Number of processes of a run with these options on this node: one, or one per device if the strategy requires it.
/// Throws a ConfigError if more devices are requested than exist.
FULGUR_API int64_t count_processes(const TrainerOptions& options);

/// Runs the loops, one run at a time: a second run on the same Trainer, from a hook or another thread, throws an Error
/// and does not affect the first. A Trainer may be reused after a run, even one that failed. It may be destroyed from
/// inside a run, which then continues to its end. Two Trainers may run in two threads of a process, but they share
/// LibTorch's generators and settings; signals reach both. Not supported: a forked process whose parent used CUDA.
class FULGUR_API Trainer {
 public:
  explicit Trainer(TrainerOptions options = {}, TrainerComponents components = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// A trainer configured by `config`.
  static Trainer from_config(const Config& config);

  /// Trains. A signal ends it cleanly: the report then has its exit code. Any other failure is thrown, and `last_fit()`
  /// reports what was reached.
  FitReport fit(std::shared_ptr<LightningModule> module, DataSource data = {}, const CheckpointChoice& checkpoint = {});
  EvalReport validate(std::shared_ptr<LightningModule> module, DataSource data = {},
                      const CheckpointChoice& checkpoint = {});
  EvalReport test(std::shared_ptr<LightningModule> module, DataSource data = {},
                  const CheckpointChoice& checkpoint = {});
  PredictReport predict(std::shared_ptr<LightningModule> module, DataSource data = {},
                        const CheckpointChoice& checkpoint = {});

  /// The same for a module whose class is known at compile time: hooks that it does not override cost nothing.
  template <class M>
  requires(std::derived_from<M, LightningModule> && !std::same_as<M, LightningModule>) FitReport
      fit(std::shared_ptr<M> module, DataSource data = {}, const CheckpointChoice& checkpoint = {}) {
    detail::ComponentAccess::find_overridden<LightningModule>(*module);
    return fit(std::shared_ptr<LightningModule>(std::move(module)), std::move(data), checkpoint);
  }
  template <class M>
  requires(std::derived_from<M, LightningModule> && !std::same_as<M, LightningModule>) EvalReport
      validate(std::shared_ptr<M> module, DataSource data = {}, const CheckpointChoice& checkpoint = {}) {
    detail::ComponentAccess::find_overridden<LightningModule>(*module);
    return validate(std::shared_ptr<LightningModule>(std::move(module)), std::move(data), checkpoint);
  }
  template <class M>
  requires(std::derived_from<M, LightningModule> && !std::same_as<M, LightningModule>) EvalReport
      test(std::shared_ptr<M> module, DataSource data = {}, const CheckpointChoice& checkpoint = {}) {
    detail::ComponentAccess::find_overridden<LightningModule>(*module);
    return test(std::shared_ptr<LightningModule>(std::move(module)), std::move(data), checkpoint);
  }
  template <class M>
  requires(std::derived_from<M, LightningModule> && !std::same_as<M, LightningModule>) PredictReport
      predict(std::shared_ptr<M> module, DataSource data = {}, const CheckpointChoice& checkpoint = {}) {
    detail::ComponentAccess::find_overridden<LightningModule>(*module);
    return predict(std::shared_ptr<LightningModule>(std::move(module)), std::move(data), checkpoint);
  }

  /// The same for a module that the Trainer creates from its options, as a config would: strategies that need a copy on
  /// each device (dp) then know how to create one. To reuse the module later, use `make_component<LightningModule,
  /// M>(options)`.
  template <std::derived_from<LightningModule> M>
  FitReport fit(const OptionsType<M>& options, DataSource data = {}, const CheckpointChoice& checkpoint = {}) {
    return fit(std::shared_ptr<LightningModule>(make_component<LightningModule, M>(options)), std::move(data),
               checkpoint);
  }

  /// The config as a run would save it, with each `auto` of the trainer resolved for this machine. Runs nothing; throws
  /// as a run would if devices are missing.
  ConfigNode resolved_config() const;
  const TrainerOptions& options() const;
  std::filesystem::path log_dir() const;
  /// The report of this Trainer's last fit, including one that threw: its exit code is that of the exception, its
  /// `stop_reason` is `exception`, and it has the metrics and counts reached. It has no `peak_memory`, which ranks
  /// gather. Nullopt before the first fit has ended.
  std::optional<FitReport> last_fit() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // a run keeps it, so the Trainer may be destroyed first
};

}  // namespace fulgur
