#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "recorded_call.h"

namespace fulgur::detail {

/// The life of memory that a step makes, in indices of recorded calls. `is_shared`: see StorageUse.
struct MadeMemory {
  size_t size = 0, number = 0, first = 0, last = 0;
  bool is_shared = false;
};
using MadeMemories = std::unordered_map<c10::StorageImpl*, MadeMemory>;
MadeMemories made_memories(const StorageUses& uses);

/// Results that are written over an argument whose last use is the call, so that a replay touches less memory: what it
/// writes is in the cache already.
class ReusedMemory {
 public:
  /// `made` is kept up to date: it loses what is not used any more.
  explicit ReusedMemory(MadeMemories& made) : made_(made) {}

  /// The same value, whose tensors are on the memory that was chosen for them.
  c10::IValue placed(const c10::IValue& value) const;
  Tensor placed(const Tensor& tensor) const;

  /// Tries it for a result of call number `k`, which is replayed by `overload` with `outputs`. Values of the recording
  /// that `constants` hold are computed once.
  void try_reuse(const RecordedCall& call, size_t k, const c10::OperatorHandle& overload,
                 const std::vector<Tensor>& outputs, const std::unordered_set<c10::StorageImpl*>& constants);
  /// Frees the memory that results had in the recording.
  void free_replaced() const;

 private:
  MadeMemories& made_;
  std::unordered_map<c10::StorageImpl*, Tensor> chosen_;  // of results: a tensor with the memory that they use
};

}  // namespace fulgur::detail
