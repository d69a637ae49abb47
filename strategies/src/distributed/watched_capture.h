#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "fulgur/core/device/graph_capture.h"

namespace fulgur::detail {

class LaunchWatch;

/// Watches launches that exchange with other ranks. NCCL's watchdog tracks exchanges that were called individually, not
/// those inside a graph: a lost rank would block the device, and any thread that waits for it, forever. A thread checks
/// whether each launch ends within `timeout()`, and calls `on_late`, once, if one does not; that must end the device's
/// exchanges. It must exist until the device has ended all launches, also after an exception.
std::shared_ptr<LaunchWatch> watch_launches(c10::Device device, std::function<std::chrono::milliseconds()> timeout,
                                            std::function<void()> on_late);

/// A recorder whose launches are watched.
std::unique_ptr<GraphCapture> make_watched_capture(std::unique_ptr<GraphCapture> inner,
                                                   std::shared_ptr<LaunchWatch> watch);

}  // namespace fulgur::detail
