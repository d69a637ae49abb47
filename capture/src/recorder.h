#pragma once

#include <cstdint>
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
  /// Where storages are read first that are no state, no input and no part of the previous recording, if host code may
  /// have made them in this step.
  std::unordered_map<c10::StorageImpl*, std::string> places;
  /// Checksums of borrowed memory when it is read first: it may be the same memory, with other values, in each step.
  std::unordered_map<c10::StorageImpl*, uint64_t> borrowed;
};

/// What an earlier recording used.
struct KnownState {
  std::vector<c10::Storage> storages;
  std::vector<at::Generator> generators;
};

/// Runs `step` once and records its operations. `known` is kept from the beginning of the step, as is options.state.
RawRecording record_calls(const std::function<void()>& step, const RecordOptions& options, const KnownState& known);

/// Storages that existed before the step as far as the recording knows, but whose memory belonged to something that the
/// step has freed, as for from_blob of a local variable. Their copies are dropped: the memory must not be touched.
std::vector<const StorageUse*> forget_lost_memory(RawRecording& recording, const StorageUses& uses);

}  // namespace fulgur::detail
