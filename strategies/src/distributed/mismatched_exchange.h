#pragma once

#include <string_view>

#include "distributed/heartbeat.h"
#include "fulgur/core/contracts/process_place.h"

namespace fulgur::detail {

/// Causes of mismatched exchanges.
inline constexpr std::string_view kMismatchCauses =
    "such as a collective that some ranks do not call, or call in another order (all_gather, all_reduce, barrier, "
    "request_checkpoint, set_accumulation, a step or a backward depending on the rank).";

/// Gloo throws on its own thread if the messages of two ranks do not match, and nothing can catch that. From now on
/// such an exception is reported with what the ranks were doing, and ends the process with exit code 5 instead of
/// SIGABRT.
void report_mismatches(Heartbeat& heartbeat, const ProcessPlace& place);
/// `heartbeat` is about to be destroyed.
void forget_mismatches(const Heartbeat& heartbeat);

}  // namespace fulgur::detail
