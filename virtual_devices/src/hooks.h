#pragma once

namespace fulgur::virtual_devices {

/// What LibTorch asks of a backend outside its kernels: generators, the allocator of pinned memory, resizing.
void register_hooks();

}  // namespace fulgur::virtual_devices
