#pragma once

namespace fulgur::simulated_nccl {

/// The bus of a device, which tells the machine's devices apart in every process.
int gpu_of(int device);

}  // namespace fulgur::simulated_nccl
