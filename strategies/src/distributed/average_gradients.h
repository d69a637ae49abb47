#pragma once

#include "fulgur/core/collectives.h"
#include "fulgur/core/optimizer.h"

namespace fulgur::detail {

/// Makes the gradients of the module's parameters in `optimizer` their means over ranks: one exchange for each dtype
/// and device. All ranks must call it, with the same parameters. A parameter that has a gradient on some ranks only
/// counts as zero on the others; one without any stays without.
void average_gradients(const Optimizer& optimizer, Collectives& collectives);

}  // namespace fulgur::detail
