#pragma once

namespace fulgur::simulated_nccl {

/// The machine's number of a device of this process: CUDA_VISIBLE_DEVICES lists them.
int gpu_of(int device);

}  // namespace fulgur::simulated_nccl
