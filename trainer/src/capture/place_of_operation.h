#pragma once

#include <string>

#include "run/run_state.h"

namespace fulgur::detail {

/// The part of the batch's work that runs now, and the innermost of the run's modules whose function is on the call
/// stack, such as `training_step, module 'head' (MyHead)`. LibTorch's modules have no hooks, and this costs nothing
/// until it is called; then it takes milliseconds.
std::string place_of_operation(const RunState& run);

}  // namespace fulgur::detail
