#pragma once

namespace fulgur::virtual_devices {

/// Registers what LibTorch needs from a backend besides kernels: generators, the allocator of pinned memory, resizing.
void register_hooks();

}  // namespace fulgur::virtual_devices
