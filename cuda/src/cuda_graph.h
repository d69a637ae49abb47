#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "fulgur/core/device/graph_capture.h"

namespace fulgur {

/// A CUDA graph of the work on that device, with its own memory pool.
std::unique_ptr<GraphCapture> make_cuda_graph(c10::Device device);

}  // namespace fulgur
