#pragma once

#include <string>

#include "fulgur/trainer/allocator_options.h"

namespace fulgur::detail {

/// Throws a ConfigError where `cuda` has not the form of PYTORCH_CUDA_ALLOC_CONF; what keys and values there are is
/// known to LibTorch only.
void check_allocator(const AllocatorOptions& options);

/// Sets what the options say, for the rest of the process. Before the first tensor on the device. Throws a ConfigError
/// for what LibTorch refuses; warns once where CUDA's settings meet a run without CUDA.
void set_allocator(const AllocatorOptions& options, const std::string& accelerator);

}  // namespace fulgur::detail
