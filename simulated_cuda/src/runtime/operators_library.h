#pragma once

namespace simulated_cuda {

/// Loads the operators' library as soon as LibTorch's CUDA library is in the process. Without the operators' library,
/// kernels compute nothing. SIMULATED_CUDA_OPERATORS=0 prevents loading.
void load_operators();
/// Whether `load_operators` has loaded the library, so that kernels have results.
bool operators_are_loaded();

}  // namespace simulated_cuda
