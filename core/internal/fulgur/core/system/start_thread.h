#pragma once

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "fulgur/core/system/no_signals.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

/// Starts a thread that has all signals blocked. Throws an Error, with the `component` that needs the thread and with
/// `advice`, if the system provides none.
template <class Work>
std::thread start_thread(std::string_view component, std::string_view advice, Work&& work) {
  const NoSignals blocked;
  try {
    return std::thread(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    throw Error(cat("[", component, "] the system must provide a thread; it provided none (", error.what(), "). ",
                    advice, " The limits are those of `ulimit -u` and of the control group (pids.max)."));
  }
}

}  // namespace fulgur
