#include "fulgur/core/system/stop_signal.h"

namespace fulgur {
namespace {

// Initialised before any code runs: a handler reads it.
constinit std::atomic<int> received_stop_signal{0};

}  // namespace

std::atomic<int>& stop_signal() noexcept { return received_stop_signal; }

}  // namespace fulgur
