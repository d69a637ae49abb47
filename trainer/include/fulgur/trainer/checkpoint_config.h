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
/// as in the config. `ckpt_path: auto` is replaced by the path it resolves to. Returns the differences; empty if no run
/// is resumed (no checkpoint, `load.loops` off, a finished run). If `locks` is true, the run's folder is locked while
/// it is read; with several ranks, only the first rank locks it. Throws a CheckpointError listing all differences of
/// the model, which are not allowed, and for a checkpoint that cannot be read.
FULGUR_API std::vector<ConfigDifference> agree_with_checkpoint(Config& config, bool locks = true);

/// The state of the data module in the checkpoint that a run of `config` will load; nullopt if it loads none, or one
/// without such a state. Call `agree_with_checkpoint` first for a fit. Throws a CheckpointError if there is no such
/// checkpoint.
FULGUR_API std::optional<StateTree> data_state_in_checkpoint(const Config& config);

/// Whether the run that `ckpt_path: auto` finds has finished, so that there is nothing to resume.
FULGUR_API bool run_has_finished(const Config& config);

/// Whether the run that `ckpt_path: auto` finds is the one whose folder contains `checkpoint`.
FULGUR_API bool resumes_run_of(const std::filesystem::path& checkpoint, const Config& config);

/// The run folder in which `ckpt_path: auto` looks first: the config's own, else the version that its logger names, or
/// the newest; empty if no run folder exists. It may have nothing to resume from.
FULGUR_API std::filesystem::path newest_run_folder(const Config& config);

}  // namespace fulgur
