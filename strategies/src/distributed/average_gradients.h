#pragma once

#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/contracts/optimizer.h"

namespace fulgur::detail {

/// Averages the gradients of the module's parameters in `optimizer` over ranks: one exchange per dtype and device. All
/// ranks must call it, with the same parameters. A parameter that has a gradient on only some ranks counts as zero on
/// the others; one without a gradient on any rank keeps none.
void average_gradients(const Optimizer& optimizer, Collectives& collectives);

}  // namespace fulgur::detail
