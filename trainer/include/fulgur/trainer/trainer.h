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
  /// Adds a callback whose class is known here: hooks that it does not override cost nothing.
  template <std::derived_from<Callback> C>
  TrainerComponents& add(std::shared_ptr<C> callback) {
    if (!callback->overridden().exact) callback->set_overridden(Callback::hooks_of<C>());
    callbacks.push_back(std::move(callback));
    return *this;
  }

  std::vector<std::shared_ptr<Callback>> callbacks;
  std::vector<std::shared_ptr<Logger>> loggers;
  std::shared_ptr<Strategy> strategy;
  std::shared_ptr<Precision> precision;
  /// The config of the run, saved in the run folder and the checkpoints; made from the options where it is absent.
  std::optional<ConfigNode> config;
  /// Folder of the config file: where it is a run folder, `last` and `best` are looked for in it.
  std::filesystem::path config_folder;
  /// For modules that plan no optimizer of their own.
  std::optional<Spec<Optimizer>> optimizer;
  std::optional<Spec<LrScheduler>> lr_scheduler;
  /// When that schedule steps; its `scheduler` is made from `lr_scheduler`.
  SchedulerConfig lr_scheduler_config;
  /// What of a checkpoint is loaded.
  CheckpointLoading load;
  /// Seed of loaders and generators; nothing: the process's random state is used as it is.
  std::optional<uint64_t> seed;
};

/// Where data comes from: a DataModule, or loaders as they are.
struct FULGUR_API DataSource {
  std::shared_ptr<DataModule> module;
  Loaders train, validation, test, predict;
  DataSource() = default;
  DataSource(std::shared_ptr<DataModule> data) : module(std::move(data)) {}
  /// A data module whose class is known here: unless it overrides a transfer hook, its batches are copied to the device
  /// ahead of time.
  template <std::derived_from<DataModule> D>
  requires(!std::same_as<D, DataModule>) DataSource(std::shared_ptr<D> data) : module(std::move(data)) {
    if (!module->overridden().exact) module->set_overridden(DataModule::hooks_of<D>());
  }
  DataSource(std::shared_ptr<Loader> train_loader, Loaders validation_loaders = {})
      : train{std::move(train_loader)}, validation(std::move(validation_loaders)) {}
  template <std::derived_from<Loader> L>
  requires(!std::same_as<L, Loader>) DataSource(std::shared_ptr<L> train_loader, Loaders validation_loaders = {})
      : DataSource(std::shared_ptr<Loader>(std::move(train_loader)), std::move(validation_loaders)) {}
};

/// `last`, `best`, a path, or, for fit, `auto`, as `--ckpt_path` takes them.
using CheckpointChoice = std::optional<std::string>;

/// Processes that a run with these options has on this node: one, or one for each device where the strategy wants that.
/// Throws a ConfigError for more devices than there are.
FULGUR_API int64_t count_processes(const TrainerOptions& options);

/// Runs the loops, one run at a time: a second one on the same Trainer, from a hook or another thread, throws an Error
/// and leaves the first alone. A Trainer may be used again after a run, also after one that failed. It may be destroyed
/// from inside a run, which then goes on to its end. Two Trainers may run in two threads of a process, but share
/// LibTorch's generators and its settings; signals reach both. After a fork(), a process whose parent used CUDA must
/// not.
class FULGUR_API Trainer {
 public:
  explicit Trainer(TrainerOptions options = {}, TrainerComponents components = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// A trainer with all that `config` says of it.
  static Trainer from_config(const Config& config);

  /// Trains. A signal ends it in order: the report then has its exit code. Any other failure is thrown, and
  /// `last_fit()` has what was reached.
  FitReport fit(std::shared_ptr<LightningModule> module, DataSource data = {}, const CheckpointChoice& checkpoint = {});
  EvalReport validate(std::shared_ptr<LightningModule> module, DataSource data = {},
                      const CheckpointChoice& checkpoint = {});
  EvalReport test(std::shared_ptr<LightningModule> module, DataSource data = {},
                  const CheckpointChoice& checkpoint = {});
  PredictReport predict(std::shared_ptr<LightningModule> module, DataSource data = {},
                        const CheckpointChoice& checkpoint = {});

  /// The same for a module whose class is known here: hooks that it does not override cost nothing.
  template <class M>
  requires(std::derived_from<M, LightningModule> && !std::same_as<M, LightningModule>) FitReport
      fit(std::shared_ptr<M> module, DataSource data = {}, const CheckpointChoice& checkpoint = {}) {
    if (!module->overridden().exact) module->set_overridden(LightningModule::hooks_of<M>());
    return fit(std::shared_ptr<LightningModule>(std::move(module)), std::move(data), checkpoint);
  }

  /// The same for a module that the Trainer makes from its options, as a config would: strategies that want a copy of
  /// it on each device (dp) know from it how another is made. For a module that is used again,
  /// `make_component<LightningModule, M>(options)`.
  template <std::derived_from<LightningModule> M>
  FitReport fit(const OptionsType<M>& options, DataSource data = {}, const CheckpointChoice& checkpoint = {}) {
    return fit(std::shared_ptr<LightningModule>(make_component<LightningModule, M>(options)), std::move(data),
               checkpoint);
  }

  /// The config as a run would save it, with each `auto` of the trainer decided for this machine. Runs nothing; throws
  /// as a run would where devices are missing.
  ConfigNode resolved_config() const;
  const TrainerOptions& options() const;
  std::filesystem::path log_dir() const;
  /// The report of this Trainer's last fit, also of one that threw: its exit code is that of the exception, its
  /// `stop_reason` is `exception`, and it has the metrics and counts that the fit had reached. It has no `peak_memory`,
  /// which ranks gather. Nothing before the first fit has ended.
  std::optional<FitReport> last_fit() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // a run keeps it, so that the Trainer may go before it
};

}  // namespace fulgur
