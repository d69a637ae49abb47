#pragma once

#include <c10/core/Event.h>

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "fulgur/core/export.h"
#include "fulgur/data/batch_kind.h"

namespace fulgur {

/// Two sets of tensors on a device that batches of one kind are copied into, in turn: while the device computes with
/// one set, the next batch comes into the other. So a recorded step that reads fixed memory (`cuda_graph`) reads what
/// the loader wrote, without a copy on the device and without a wait for the copy from the host.
///
/// What is given out shares the memory of a set, which the batch after the next overwrites. If somebody still holds it
/// by then, it is not written to, and no set ever is from then on.
class FULGUR_API InputSets {
 public:
  static constexpr size_t kSets = 2;

  /// No memory is taken yet.
  explicit InputSets(BatchKind kind) : kind_(std::move(kind)) {}
  ~InputSets();
  InputSets(const InputSets&) = delete;
  InputSets& operator=(const InputSets&) = delete;

  /// Copies a batch of the host on the current stream of `device` into the set whose turn it is, and gives it out
  /// there; nothing for a batch of another kind, or once somebody has kept one.
  std::optional<Batch> write(const Batch& host, at::Device device);
  /// To be called whenever a batch begins to be used, wherever it lies. Work that is on the current stream by now is
  /// done before the set of an earlier batch is written to.
  void begin(const Batch& batch, at::Device device);
  /// The set that all entries of the batch lie in as they were written; nothing for any other batch.
  std::optional<size_t> find(const Batch& batch) const;
  const BatchKind& kind() const { return kind_; }
  /// True once somebody has held a batch until its set's next turn.
  bool kept() const { return kept_; }

 private:
  BatchKind kind_;
  std::array<Batch, kSets> sets_;
  std::array<std::optional<c10::Event>, kSets> written_;  // by whatever stream
  std::optional<c10::Event> free_;                        // follows all uses of batches before the one in use
  size_t in_use_ = kSets - 1;
  bool kept_ = false;
};

}  // namespace fulgur
