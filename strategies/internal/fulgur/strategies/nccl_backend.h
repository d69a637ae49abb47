#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

#include "fulgur/core/export.h"

namespace fulgur {

using MakeNcclBackend = c10::intrusive_ptr<c10d::Backend> (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                              int world_size, std::chrono::milliseconds timeout);

/// Called by libfulgur_cuda.so when it is loaded.
FULGUR_API void register_nccl_backend(MakeNcclBackend make);

}  // namespace fulgur
