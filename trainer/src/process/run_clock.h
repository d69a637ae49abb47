#pragma once

#include <chrono>

namespace fulgur::detail {

/// The clock of runs: `max_time`, intervals of time, `fit_time_s`.
std::chrono::steady_clock::time_point run_clock_now();

/// Replaces the clock for the whole process; nullptr: the steady clock. For tests.
void set_run_clock(std::chrono::steady_clock::time_point (*clock)());

}  // namespace fulgur::detail
