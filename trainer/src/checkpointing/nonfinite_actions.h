#pragma once

#include "run/services.h"

namespace fulgur::detail {

/// Does what the policy for NaN has decided: lets the step proceed or leaves it out, ends the run, or takes weights,
/// optimizers and schedules from the newest checkpoint. True if the step proceeds. Throws a NonFiniteError if there is
/// nothing to roll back to.
bool carry_out(RunState& run, Services& services, NonFiniteDecision decision);

}  // namespace fulgur::detail
