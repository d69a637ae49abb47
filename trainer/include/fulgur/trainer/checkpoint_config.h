#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/trainer/config.h"

namespace fulgur {

/// An option in which a config differs from that of a checkpoint.
struct FULGUR_API ConfigDifference {
  std::string key;         ///< `optimizer.init_args.lr`
  std::string checkpoint;  ///< the value in the checkpoint, as YAML; empty if it is not set
  std::string config;      ///< the value in the config, in the same form
  bool config_won = true;
  /// A line for display, such as `optimizer.init_args.lr: 0.1 in the checkpoint, 0.2 in the config; continues with
  /// 0.1`.
  std::string describe() const;
};

/// Reconciles the config of a fit with its checkpoint (`ckpt_path`) before anything is created from it: optimizer,
/// schedule, batch size and seed take the checkpoint's values, unless `load.allow_config_change`; everything else stays
/// as in the config. If LearningRateFinder found the rate, `scale_lr` and `base_batch_size` belong to it, and `found`
/// of both finders is taken over without a difference. `ckpt_path: auto` is replaced by the path it resolves to.
/// Returns the differences; empty if no run is resumed (no checkpoint, `load.loops` off, a finished run). If `locks` is
/// true, the run's folder is locked while it is read; with several ranks, only the first rank locks it. Throws a
/// CheckpointError listing all differences of the model, which are not allowed, and for a checkpoint that cannot be
/// read.
FULGUR_API std::vector<ConfigDifference> agree_with_checkpoint(Config& config, bool locks = true);

/// The state of the data module in the checkpoint that a run of `config` will load; nullopt if it loads none, or one
/// without such a state. Call `agree_with_checkpoint` first for a fit. Throws a CheckpointError if there is no such
/// checkpoint.
FULGUR_API std::optional<StateTree> data_state_in_checkpoint(const Config& config);

/// Whether the run that `ckpt_path: auto` finds has finished, so that there is nothing to resume.
FULGUR_API bool run_has_finished(const Config& config);

/// If `ckpt_path: auto` finds a finished run, compares its model with that of the config as `agree_with_checkpoint`
/// does for a run that is resumed. Throws a ConfigError listing all differences: the result of the finished run is not
/// that of this config. With `load.allow_config_change`, only another class is refused.
FULGUR_API void check_finished_run(const Config& config);

/// Whether a fit of `config` begins at its first step: it has nothing to resume, loads only parts of a checkpoint, or
/// weights that were imported. False if `ckpt_path: auto` finds a finished run. Call `agree_with_checkpoint` first.
/// Throws a CheckpointError if there is no such checkpoint.
FULGUR_API bool starts_at_first_step(const Config& config);

/// The folder of the run that `ckpt_path: auto` finds; nullopt if there is none.
FULGUR_API std::optional<std::filesystem::path> run_to_resume(const Config& config);

/// Whether `ckpt_path` is one of the words that mean a link in a run folder, and not a path.
FULGUR_API bool is_last_or_best(const std::optional<std::string>& ckpt_path);

/// Whether the run in the folder has written the checkpoint, there or in another folder.
FULGUR_API bool is_checkpoint_of(const std::filesystem::path& checkpoint, const std::filesystem::path& run_folder);

/// The `ckpt_path` with which the run in the folder started, as its saved config says; nullopt if it started without.
FULGUR_API std::optional<std::string> start_of_run(const std::filesystem::path& run_folder);

/// Replaces a `ckpt_path` of `last` or `best` by the path that it means now, if the fit starts another run from that
/// checkpoint: in the saved config of the new run the words would mean its own checkpoints. Throws a CheckpointError if
/// there is no such checkpoint.
FULGUR_API void resolve_start(Config& config);

/// The checkpoint of a failed run that a callback of the config knows, from which a fit without `ckpt_path` resumes.
FULGUR_API std::optional<std::filesystem::path> resume_candidate(const Config& config);

/// The run folder in which `ckpt_path: auto` looks first: the config's own, else the version that its logger names, or
/// the newest; empty if no run folder exists. It may have nothing to resume from.
FULGUR_API std::filesystem::path newest_run_folder(const Config& config);

}  // namespace fulgur
