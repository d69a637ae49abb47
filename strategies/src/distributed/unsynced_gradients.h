#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/optimizer.h"

namespace fulgur::detail {

/// Tracks gradients that manual backwards have computed only locally, since no exchange has followed. A step on them
/// would make the ranks differ.
class UnsyncedGradients {
 public:
  explicit UnsyncedGradients(std::vector<NamedParameter> parameters);

  /// Call around each backward; `exchanged`: it has averaged the gradients that it has written.
  void before_backward();
  void after_backward(bool exchanged);
  /// The gradients of `optimizer` are now averaged over all ranks.
  void synced(const Optimizer& optimizer);
  /// Throws a DistributedError that names a parameter of `optimizer` whose gradient is local to this rank. A gradient
  /// that was replaced since, or set to undefined, is not.
  void check_step(const Optimizer& optimizer) const;

 private:
  struct Seen {
    NamedParameter parameter;
    const void* before = nullptr;    ///< the gradient before the current backward
    int64_t version = 0;             ///< version counter of its values
    const void* unsynced = nullptr;  ///< the gradient that is local to this rank
  };
  std::vector<Seen> seen_;
};

}  // namespace fulgur::detail
