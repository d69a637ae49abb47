#pragma once

#include <string_view>

#include "distributed/heartbeat.h"
#include "fulgur/core/process_place.h"

namespace fulgur::detail {

/// What makes ranks exchange different things.
inline constexpr std::string_view kMismatchCauses =
    "such as a collective that not all ranks call, in the same order (all_gather, all_reduce, barrier, "
    "request_checkpoint, set_accumulation, a step or a backward by a condition on the rank).";

/// Gloo throws on a thread of its own where the messages of two ranks do not fit, and nothing can catch that. From now
/// on such an exception is reported with what the ranks did, and ends the process with exit code 5, not by SIGABRT.
void report_mismatches(Heartbeat& heartbeat, const ProcessPlace& place);
/// `heartbeat` is about to end.
void forget_mismatches(const Heartbeat& heartbeat);

}  // namespace fulgur::detail
