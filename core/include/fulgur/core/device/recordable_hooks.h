#pragma once

#include "fulgur/core/export.h"

namespace fulgur {

/// A second base of a LightningModule whose hooks inside a step consist of operations on tensors and of log(), so that
/// captured steps (`capture`) may contain them: on_before_backward, on_after_backward, on_before_optimizer_step and
/// configure_gradient_clipping. A replay repeats these operations and runs no other code of the hooks, as for
/// training_step. Without this base, steps of a module that overrides one of them are not captured.
class FULGUR_API RecordableHooks {
 public:
  virtual ~RecordableHooks();
};

}  // namespace fulgur
