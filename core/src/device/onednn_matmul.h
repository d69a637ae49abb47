#pragma once

#include <atomic>

#include "fulgur/core/device/cpu_matmul_rule.h"

namespace fulgur::detail {

/// The products that oneDNN computes at present; nullptr: none.
extern std::atomic<const MatmulShapes*> onednn_shapes;

/// Registers the kernels that follow `onednn_shapes`, once per process.
void register_onednn_matmul();

}  // namespace fulgur::detail
