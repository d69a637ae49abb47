#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur {

class LightningModule;
class OptimizerHandle;

/// Implemented by a Strategy whose ranks must have the same weights, learning rates and numbers of steps.
class FULGUR_API SameRanks {
 public:
  virtual ~SameRanks();
  /// Throws a DistributedError, on all ranks, that names the first weight, learning rate or optimizer that differs. The
  /// Trainer calls it on all ranks: at the end of each epoch, before a save of weights that are on the host, and at the
  /// end of a fit. May wait for the device once.
  virtual void check_same_ranks(LightningModule& module, const std::vector<OptimizerHandle*>& optimizers,
                                int64_t global_step) = 0;
  /// Throws a DistributedError if ranks that gather divided parameters from each other have done so in different
  /// orders, which gives them wrong values. The Trainer calls it on all ranks at the end of an evaluation.
  virtual void check_order() {}
};

}  // namespace fulgur
