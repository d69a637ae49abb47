#pragma once

namespace fulgur::virtual_devices {

/// Registers kernels for the operations that make, view, resize and copy tensors, and a fallback for all others.
void register_kernels();

}  // namespace fulgur::virtual_devices
