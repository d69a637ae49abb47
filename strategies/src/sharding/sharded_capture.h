#pragma once

#include <memory>

#include "fulgur/core/device/graph_capture.h"
#include "sharding/parameter_shards.h"

namespace fulgur::detail {

/// A recorder of steps that gather divided parameters. The host gathers only while it records: launches count as
/// gathers when the ranks compare their orders, and a recording that fails leaves every unit divided.
std::unique_ptr<GraphCapture> make_sharded_capture(std::unique_ptr<GraphCapture> inner,
                                                   std::weak_ptr<ParameterShards> shards);

}  // namespace fulgur::detail
