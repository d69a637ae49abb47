#pragma once

#include <memory>

#include "fulgur/trainer/trainer.h"

namespace fulgur::cli {

/// The parts of a run, as named in the config.
struct PreparedRun {
  Trainer trainer;
  std::shared_ptr<LightningModule> module;
  DataSource data;
};

/// Creates the parts, after links to values of the data were filled. `several`: other processes of the same run do so
/// too; they prepare the data one after another. Throws a ConfigError if the config names no model.
/// `components` are added to those of the config.
PreparedRun prepare(Config config, TrainerFn fn, bool several = false, TrainerComponents components = {});

}  // namespace fulgur::cli
