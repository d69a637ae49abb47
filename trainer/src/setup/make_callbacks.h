#pragma once

#include "logging/log_store.h"
#include "run/run_state.h"

namespace fulgur::detail {

/// The callbacks of the options, the program and the module, and the default ones; registers the metrics that they
/// monitor with `logs`.
void make_callbacks(RunState& run, LogStore& logs);

/// The loggers of the options and the program, or the default ones. None in trial runs.
void make_loggers(RunState& run);

/// Throws a ConfigError if two callbacks keep state under one key. Called after their setup: a state may need it.
void check_state_keys(RunState& run);

}  // namespace fulgur::detail
