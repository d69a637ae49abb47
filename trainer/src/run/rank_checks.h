#pragma once

#include <cstdint>
#include <memory>

#include "fulgur/core/contracts/collectives.h"
#include "run/run_state.h"

namespace fulgur::detail {

/// Checks that the ranks of a run still do the same. With one rank, these functions do nothing.
class RankChecks {
 public:
  explicit RankChecks(RunState& run) : run_(run) {}
  /// Synchronizes with the device, and throws if an exchange between ranks has failed on it: its results are undefined
  /// then.
  void check_exchanges();
  /// Checks that ranks that must be identical are, or throws a DistributedError with the difference; at most once per
  /// step. All ranks must call it.
  void check_same_ranks();
  /// Checks that the ranks have gathered divided parameters in the same order. All ranks must call it.
  void check_order();
  /// Checks that all ranks have made the same number of steps, on which the next actions depend. In manual
  /// optimization, each rank could step on its own condition. All ranks must call it. The exchange is read after the
  /// next batch, so it blocks no rank.
  void check_same_steps();
  /// Reads the exchange now, before a decision that depends on steps; `with_all`: all ranks are here, and report their
  /// steps.
  void settle_same_steps(bool with_all);

 private:
  RunState& run_;
  std::unique_ptr<PendingReduction> same_steps_;
  int64_t same_ranks_at_ = -1;  // the step at which ranks were last compared
};

}  // namespace fulgur::detail
