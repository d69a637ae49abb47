#pragma once

#include <map>
#include <string>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/options/options.h"

namespace fulgur {

/// The parts of a checkpoint that are loaded, and how (`load:` in the config).
struct FULGUR_API CheckpointLoading {
  bool weights_only = false;  ///< as if the next four options were false
  bool optimizer = true;
  bool lr_scheduler = true;
  bool loops = true;  ///< progress, position in the data, callbacks, metrics, open accumulation window
  bool rng = true;
  bool strict = true;                               ///< names, shapes and dtypes of the weights must match
  std::map<std::string, std::string> key_prefixes;  ///< maps prefixes of names in the checkpoint to those in the module
  Verify verify = Verify::whole;                    ///< with `needed`, only the files that are read are verified
  bool allow_config_change = false;                 ///< the config overrides the checkpoint, see agree_with_checkpoint

  bool loads_optimizer() const { return optimizer && !weights_only; }
  bool loads_lr_scheduler() const { return lr_scheduler && !weights_only; }
  bool loads_loops() const { return loops && !weights_only; }
  bool loads_rng() const { return rng && !weights_only; }

  void fields(Fields& f);
  /// Throws a ConfigError for an invalid combination.
  void check() const;
};

}  // namespace fulgur
