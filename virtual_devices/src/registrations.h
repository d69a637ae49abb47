#pragma once

namespace fulgur::virtual_devices {

/// Registers what LibTorch needs from a backend besides kernels: generators, the allocator of pinned memory, resizing.
void register_hooks();
/// Registers kernels for the operations that make, view, resize and copy tensors, and a fallback for all others.
void register_kernels();
/// Registers GRU and LSTM cells: on unknown devices, LibTorch uses those that it has only for GPUs.
void register_recurrent();
/// Registers PyTorch's lists of the operations that autocast runs in half and in full precision.
void register_autocast();

}  // namespace fulgur::virtual_devices
