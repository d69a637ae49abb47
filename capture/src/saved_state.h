#pragma once

#include <ATen/core/Generator.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "recorded_call.h"

namespace fulgur::detail {

/// Copies of the bytes of storages and of the states of generators.
class SavedState {
 public:
  bool is_empty() const { return bytes_.empty() && generators_.empty(); }
  bool has(c10::StorageImpl* storage) const { return bytes_.contains(storage); }
  /// Copies the present bytes, at most the first `most`, unless the storage was added before.
  void add(const c10::Storage& storage, size_t most = SIZE_MAX);
  void add(const at::Generator& generator);
  void forget(c10::StorageImpl* storage) { bytes_.erase(storage); }
  std::vector<at::Generator> generators() const;
  /// The same storages and generators as those of `other`, as they are now.
  static SavedState now(const SavedState& other);
  /// Writes the copies back. A storage that is smaller by now is left as it is.
  void restore() const;
  /// The storages of this state whose bytes are others in `other`.
  std::vector<c10::StorageImpl*> differing(const SavedState& other) const;
  bool generators_differ_from(const SavedState& other) const;

 private:
  struct Copy {
    c10::Storage storage;
    size_t size = 0;
    std::unique_ptr<std::byte[]> bytes;
  };
  std::unordered_map<c10::StorageImpl*, Copy> bytes_;
  std::vector<std::pair<at::Generator, Tensor>> generators_;
};

}  // namespace fulgur::detail
