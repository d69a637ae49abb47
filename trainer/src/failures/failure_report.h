#pragma once

#include <exception>

#include "run/run_state.h"

namespace fulgur::detail {

/// Logs where the run failed, and a hint if there is one.
void report_failure(const RunState& run, const std::exception& error);

/// Logs information that a user needs when memory runs out, in addition to LibTorch's message.
void explain_out_of_memory(const RunState& run);

}  // namespace fulgur::detail
