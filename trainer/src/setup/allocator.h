#pragma once

#include <string>

#include "fulgur/trainer/allocator_options.h"

namespace fulgur::detail {

/// Throws a ConfigError if `cuda` does not have the form of PYTORCH_CUDA_ALLOC_CONF; only LibTorch knows the valid keys
/// and values.
void check_allocator(const AllocatorOptions& options);

/// Sets what malloc and Fulgur keep, for the rest of the process. The creation of a module needs it, too: what it frees
/// would stay in the heap, as holes that later blocks only fit by chance.
void set_kept_memory(const AllocatorOptions& options);

/// Applies all options for the rest of the process. Call before the first tensor is created on the device. Throws a
/// ConfigError for settings that LibTorch rejects; warns once if CUDA's settings are given in a run without CUDA.
void set_allocator(const AllocatorOptions& options, const std::string& accelerator);

}  // namespace fulgur::detail
