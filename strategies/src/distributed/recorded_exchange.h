#pragma once

#include <vector>

#include "distributed/gradient_exchange.h"
#include "fulgur/capture/exchange_operation.h"
#include "fulgur/strategies/process_group.h"

namespace fulgur::detail {

/// Exchanges of steps on the CPU as operations, so that captured steps contain them. A rank that computes a step
/// eagerly and one that replays it exchange the same.
class RecordedExchange {
 public:
  /// `group` must outlive this.
  explicit RecordedExchange(ProcessGroup& group);
  /// Does after a backward what the reducer of these gradients, a `GradientReducer`, does while backward computes: with
  /// its buckets, so with its bits. Throws a DistributedError that names parameters without a gradient.
  void average_gradients(const GradientExchange& reducer) const;
  /// Sets tensors to those of rank 0.
  void take_from_rank_0(const std::vector<Tensor>& tensors) const;

 private:
  ProcessGroup& group_;
  ExchangeOperation sum_, of_rank_0_;
};

}  // namespace fulgur::detail
