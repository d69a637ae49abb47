#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "recorded_call.h"

namespace fulgur::detail {

uint64_t checksum_of(std::span<const std::byte> bytes);
uint64_t checksum_of(const c10::StorageImpl& storage);

/// Finds code of the host that writes the memory of tensors between the operations of a step, as by `data_ptr()` or an
/// accessor, which a replay does not do. Memory up to `kMost` bytes, and that of constants up to `kMostOfConstants`, is
/// compared by a checksum before and after each operation that uses it.
class HostWrites {
 public:
  static constexpr size_t kMost = size_t{1} << 16, kMostOfConstants = size_t{1} << 20;

  /// The present values are those at the beginning of the step.
  void begin_with(const c10::Storage& storage) { look(storage.unsafeGetStorageImpl()); }
  /// Before an operation reads `tensor`: whether its memory has changed since the last operation that used it.
  bool changed(const Tensor& tensor);
  /// After an operation that is no view: the tensors without values that it has read. Such memory can get values only
  /// from the host.
  std::vector<Tensor> reads_without_values(const RecordedCall& call) const;
  /// Notes the values after an operation.
  void after(const RecordedCall& call);
  /// What is known of memory that an operation has used inside.
  void forget(c10::StorageImpl* storage);
  /// The storages whose memory has changed since the last operation that used them, or since the beginning. Borrowed
  /// memory, which may be gone by now, is left out.
  std::vector<c10::StorageImpl*> changed_since() const;

 private:
  bool is_compared(c10::StorageImpl* storage) const;
  void look(c10::StorageImpl* storage);

  std::unordered_map<c10::StorageImpl*, uint64_t> seen_;  // checksums
  std::unordered_set<c10::StorageImpl*> without_values_, constants_;
};

}  // namespace fulgur::detail
