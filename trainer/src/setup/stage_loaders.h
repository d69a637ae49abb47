#pragma once

#include "run/run_state.h"

namespace fulgur::detail {

/// Creates the loaders of the run's stages, and sets how to create them again. Throws a ConfigError or a DataError if
/// the data, the limits and the module's steps do not fit together.
void set_up_loaders(RunState& run);

}  // namespace fulgur::detail
