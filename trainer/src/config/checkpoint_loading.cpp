#include "fulgur/trainer/checkpoint_loading.h"

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

void CheckpointLoading::fields(Fields& f) {
  f(weights_only, "weights_only", "Load only the weights: a new run starts from them.");
  f(optimizer, "optimizer", "Load the state of the optimizers.");
  f(lr_scheduler, "lr_scheduler", "Load the state of the learning-rate schedules.");
  f(loops, "loops", "Load progress, position in the data, callbacks and metrics, and continue in the run's folder.");
  f(rng, "rng", "Load the state of the random-number generators.");
  f(strict, "strict", "Names, shapes and dtypes of all weights must match; false: load what fits and report the rest.");
  f(key_prefixes, "key_prefixes",
    "Replaces prefixes of weight names: {prefix in the checkpoint: prefix in the model}.");
  f(verify, "verify", "Verify every file of the checkpoint against its manifest, or only those that are needed.");
  f(allow_config_change, "allow_config_change",
    "The config applies if it differs from the checkpoint in optimizer, schedule, batch size or seed; model options "
    "may differ too.");
}

void CheckpointLoading::check() const {
  if ((!strict || !key_prefixes.empty()) && (loads_optimizer() || loads_loops()))
    throw ConfigError(cat("[load] ", strict ? "key_prefixes" : "strict: false",
                          " only applies to the weights; the optimizer's state and the open accumulation window use "
                          "the same names. Set load.weights_only: true, or load.optimizer and load.loops: false."));
  if (loads_lr_scheduler() && !loads_optimizer())
    throw ConfigError("[load] a schedule resumes with its optimizer. Set load.lr_scheduler: false too.");
}

}  // namespace fulgur
