#pragma once

namespace fulgur::simulated_nccl {

/// The bus id of a device, which is the same in every process of the machine.
int gpu_of(int device);

}  // namespace fulgur::simulated_nccl
