#pragma once

#include <memory>

#include "fulgur/core/device/graph_capture.h"
#include "fulgur/core/export.h"

namespace fulgur {

/// A recorder of steps on the CPU, as CapturedPrograms. Recording the same step again compares both recordings. Each
/// recording is also replayed once and compared with the eager step to the bit, on all tensors that the step uses;
/// `record` throws StepNotRecorded, which names the operation, if anything differs or is refused.
FULGUR_API std::unique_ptr<GraphCapture> make_step_capture();

}  // namespace fulgur
