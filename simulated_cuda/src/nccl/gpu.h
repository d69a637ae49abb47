#pragma once

namespace fulgur::simulated_nccl {

/// The bus id of a device, which identifies the machine's devices in every process.
int gpu_of(int device);

}  // namespace fulgur::simulated_nccl
