#pragma once

namespace simulated_cuda {

/// Loads the operators' library once LibTorch's CUDA library is in the process: without it, kernels compute nothing.
/// SIMULATED_CUDA_OPERATORS=0 leaves it out.
void load_operators();
/// The numbers are there: by `load_operators`.
bool operators_are_loaded();

}  // namespace simulated_cuda
