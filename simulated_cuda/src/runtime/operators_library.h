#pragma once

namespace simulated_cuda {

/// Loads the operators' library once LibTorch's CUDA library is in the process: without it, kernels compute nothing.
/// SIMULATED_CUDA_OPERATORS=0 leaves it out.
void load_operators();

}  // namespace simulated_cuda
