#pragma once

#include <memory>
#include <unordered_set>
#include <vector>

#include "direct_call.h"
#include "fulgur/capture/captured_program.h"
#include "recorded_call.h"
#include "reused_memory.h"

namespace fulgur::detail {

/// What a replay does for one recorded call.
struct ReplayCall {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;
  std::vector<Tensor>
      exchanged;  ///< tensors of the program that take the memory of the results; empty if they need nothing
  std::unique_ptr<DirectCall> direct;  ///< if present, called instead of `op`
  size_t recorded = 0;                 ///< the index of the recorded call
};

struct Lowered {
  std::vector<ReplayCall> calls;
  int64_t constant_calls = 0;
  /// Of the results of calls that give the same in each step, so that they are computed only in the recording.
  std::unordered_set<c10::StorageImpl*> constants;
  MadeMemories made;  ///< the memory that the calls use and make
};

/// Chooses the calls of a replay. Each `out` overload is tried once, on the present values: it is used only if it gives
/// the same bits as the functional call, into the memory that it gets. (Some loss kernels use `out` as scratch memory
/// of another shape.)
Lowered lower(const std::vector<RecordedCall>& calls, const StorageUses& uses, const RecordOptions& options);

}  // namespace fulgur::detail
