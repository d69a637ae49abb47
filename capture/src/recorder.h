#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fulgur/capture/captured_program.h"
#include "recorded_call.h"
#include "saved_state.h"

namespace fulgur::detail {

struct RawRecording {
  std::vector<RecordedCall> calls;
  std::vector<CaptureRefusal> refusals;
  SavedState before;  ///< of all storages that existed before the step, and of the generators
};

/// Runs `step` once and records its operations. They are seen by a fallback for the dispatch key Fake, which LibTorch
/// does not use: it is below autograd and above the kernels, and costs nothing while it is off. It is registered by the
/// first recording.
RawRecording record_calls(const std::function<void()>& step, const RecordOptions& options);

}  // namespace fulgur::detail
