#pragma once

namespace fulgur::virtual_devices {

/// Registers PyTorch's lists of the operations that autocast runs in half and in full precision.
void register_autocast();

}  // namespace fulgur::virtual_devices
