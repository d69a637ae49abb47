#pragma once

#include <c10/core/Event.h>

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "fulgur/core/export.h"
#include "fulgur/data/batch_kind.h"

namespace fulgur {

/// Two sets of device tensors into which batches of one kind are copied alternately: while the device computes with one
/// set, the next batch is copied into the other. So a recorded step that reads fixed memory (`capture`) reads what
/// the loader wrote, without a device copy and without waiting for the copy from the host.
///
/// Returned batches share the memory of a set, which the batch after the next overwrites. If one is still held by then,
/// its set is not written to, and from then on no set ever is.
class FULGUR_API InputSets {
 public:
  static constexpr size_t kSets = 2;

  /// Allocates no memory yet.
  explicit InputSets(BatchKind kind) : kind_(std::move(kind)) {}
  ~InputSets();
  InputSets(const InputSets&) = delete;
  InputSets& operator=(const InputSets&) = delete;

  /// Copies a host batch on the current stream of `device` into the next set, and returns that set's batch. Returns
  /// nullopt for a batch of another kind, or once a batch was held too long.
  std::optional<Batch> write(const Batch& host, at::Device device);
  /// Call this when the use of a batch begins, no matter where the batch is stored. Work that is already queued on the
  /// current stream finishes before the set of an earlier batch is overwritten.
  void begin(const Batch& batch, at::Device device);
  /// The set that contains all entries of the batch as they were written; nullopt for any other batch.
  std::optional<size_t> find(const Batch& batch) const;
  const BatchKind& kind() const { return kind_; }
  /// True once a batch was still held when its set was to be overwritten.
  bool kept() const { return kept_; }

 private:
  BatchKind kind_;
  std::array<Batch, kSets> sets_;
  std::array<std::optional<c10::Event>, kSets> written_;  // on whichever stream
  std::optional<c10::Event> free_;                        // follows all uses of batches before the current one
  size_t in_use_ = kSets - 1;
  bool kept_ = false;
};

}  // namespace fulgur
