#pragma once

#include "run/run_state.h"

namespace fulgur::detail {

/// Warns of layers whose dropout on CUDA is drawn by cuDNN: LibTorch keeps its state outside of the generators, so that
/// no checkpoint can hold it.
void warn_of_recurrent_dropout(const RunState& run);

}  // namespace fulgur::detail
