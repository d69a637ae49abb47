#pragma once

#include <string>
#include <vector>

#include "fulgur/trainer/config.h"

namespace fulgur {

/// An option in which a config differs from that of a checkpoint.
struct FULGUR_API ConfigDifference {
  std::string key;         ///< `optimizer.init_args.lr`
  std::string checkpoint;  ///< its value there, as YAML; empty where it is not set
  std::string config;      ///< and here
  bool config_won = true;
  /// `optimizer.init_args.lr: 0.1 in the checkpoint, 0.2 in the config; goes on with 0.1`, for people.
  std::string text() const;
};

/// Makes the config of a fit one that its checkpoint (`ckpt_path`) goes on under, before anything is made of it:
/// optimizer, schedule, batch size and seed take the checkpoint's values, unless `load.allow_config_change`; all else
/// stays as the config says it. `ckpt_path: auto` becomes the path that it stands for. Returns the differences; nothing
/// where no run goes on (no checkpoint, `load.loops` off, a finished run). `locks` holds the run's folder while it is
/// read: of several ranks the first does. Throws a CheckpointError with all differences of the model, which cannot be,
/// and for a checkpoint that cannot be read.
FULGUR_API std::vector<ConfigDifference> agree_with_checkpoint(Config& config, bool locks = true);

}  // namespace fulgur
