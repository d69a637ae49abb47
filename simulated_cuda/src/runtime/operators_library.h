#pragma once

namespace simulated_cuda {

/// Loads the operators' library once LibTorch's CUDA library is in the process: without it, kernels compute nothing.
/// SIMULATED_CUDA_OPERATORS=0 disables it.
void load_operators();
/// Whether `load_operators` has loaded it, so that kernels compute.
bool operators_are_loaded();

}  // namespace simulated_cuda
