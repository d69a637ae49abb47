#pragma once

#include <concepts>
#include <filesystem>
#include <memory>
#include <optional>

#include "fulgur/core/contracts/module.h"
#include "fulgur/trainer/components.h"
#include "fulgur/trainer/config.h"
#include "fulgur/trainer/reports.h"
#include "fulgur/trainer/trainer_options.h"

namespace fulgur {

/// Number of processes of a run with these options on this node: one, or one per device if the strategy requires it.
/// Throws a ConfigError if more devices are requested than exist.
FULGUR_API int64_t count_processes(const TrainerOptions& options);

/// Runs the loops, one run at a time: a second run on the same Trainer, from a hook or another thread, throws an Error
/// and does not affect the first. A Trainer may be reused after a run, even one that failed. It may be destroyed from
/// inside a run, which then continues to its end. Two Trainers may run in two threads of a process, but they share
/// LibTorch's generators and settings, and signals reach both. A forked process whose parent used CUDA is not
/// supported.
class FULGUR_API Trainer {
 public:
  explicit Trainer(TrainerOptions options = {}, TrainerComponents components = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// A trainer configured by `config`. Call `prepare_process()` before you create the model. The callbacks, loggers,
  /// strategy and precision of `components` are used as by the constructor; the rest of it is set from the config.
  static Trainer from_config(const Config& config, TrainerComponents components = {});

  /// Applies the options that affect the whole process and on which the construction of a model depends: the seed of
  /// LibTorch's generators, the number of threads, which freed memory is kept, and silenced warnings. A run sets all
  /// but the warnings itself, but the model's initial weights are drawn before it.
  void prepare_process() const;

  /// Trains. A signal ends it cleanly: the report then has its exit code. Any other failure is thrown, and `last_fit()`
  /// reports how far the fit came.
  FitReport fit(std::shared_ptr<LightningModule> module, DataSource data = {}, const CheckpointChoice& checkpoint = {});
  EvalReport validate(std::shared_ptr<LightningModule> module, DataSource data = {},
                      const CheckpointChoice& checkpoint = {});
  EvalReport test(std::shared_ptr<LightningModule> module, DataSource data = {},
                  const CheckpointChoice& checkpoint = {});
  PredictReport predict(std::shared_ptr<LightningModule> module, DataSource data = {},
                        const CheckpointChoice& checkpoint = {});

  /// The same for a module whose class is known at compile time, so that hooks that it does not override cost nothing.
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

  /// The same for a module that the Trainer creates from its options, as a config would, so that strategies that need a
  /// copy on each device (dp) know how to create one. To reuse the module later, use `make_component<LightningModule,
  /// M>(options)`.
  template <std::derived_from<LightningModule> M>
  FitReport fit(const OptionsType<M>& options, DataSource data = {}, const CheckpointChoice& checkpoint = {}) {
    return fit(std::shared_ptr<LightningModule>(make_component<LightningModule, M>(options)), std::move(data),
               checkpoint);
  }

  /// The config as a run would save it, with each `auto` of the trainer resolved for this machine. Runs nothing; if
  /// devices are missing, it throws as a run would.
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
