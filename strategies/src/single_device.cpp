#include "fulgur/strategies/single_device.h"

#include "fulgur/capture/step_capture.h"
#include "fulgur/core/device/accelerator.h"

namespace fulgur {

std::unique_ptr<GraphCapture> SingleDeviceStrategy::make_graph_capture() {
  if (device().is_cpu()) return make_step_capture();
  const Accelerator* accelerator = find_accelerator(c10::DeviceTypeName(device().type(), /*lower_case=*/true));
  return accelerator ? accelerator->make_graph_capture(device().index()) : nullptr;
}

[[maybe_unused]] static const bool registered_single_device =
    Registry<Strategy>::add<SingleDeviceStrategy>("single_device", "One process on one device.");

}  // namespace fulgur
