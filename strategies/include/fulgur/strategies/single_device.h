#pragma once

#include "fulgur/core/contracts/single_process_strategy.h"

namespace fulgur {

/// One process on one device.
class FULGUR_API SingleDeviceStrategy final : public SingleProcessStrategy {
 public:
  std::string name() const override { return "single_device"; }
  std::unique_ptr<GraphCapture> make_graph_capture() override;
};

}  // namespace fulgur
