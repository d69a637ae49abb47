#pragma once

namespace fulgur::virtual_devices {

/// The lists of operations that autocast runs in half and in full precision: PyTorch's.
void register_autocast();

}  // namespace fulgur::virtual_devices
