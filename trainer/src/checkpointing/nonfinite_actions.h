#pragma once

#include "run/services.h"

namespace fulgur::detail {

/// Carries out what the policy for NaN has decided: proceeds with the step or skips it, ends the run, or restores
/// weights, optimizers and schedules from the newest checkpoint. True if the step proceeds. Throws a NonFiniteError if
/// there is nothing to roll back to.
bool carry_out(RunState& run, Services& services, NonFiniteDecision decision);

}  // namespace fulgur::detail
