#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/module.h"
#include "fulgur/core/optimizer.h"

namespace fulgur::detail {

/// Which gradients manual backwards have computed on this rank alone, since no exchange has followed. A step on them
/// would make the ranks differ.
class UnsyncedGradients {
 public:
  explicit UnsyncedGradients(std::vector<NamedParameter> parameters);

  /// Around each backward; `exchanged`: it has averaged the gradients that it has written.
  void before_backward();
  void after_backward(bool exchanged);
  /// The gradients of `optimizer` are those of all ranks.
  void synced(const Optimizer& optimizer);
  /// Throws a DistributedError that names a parameter of `optimizer` whose gradient is this rank's alone. A gradient
  /// that was replaced since, or set to none, is not.
  void check_step(const Optimizer& optimizer) const;

 private:
  struct Seen {
    NamedParameter parameter;
    const void* before = nullptr;    ///< the gradient before the backward under way
    int64_t version = 0;             ///< of its values
    const void* unsynced = nullptr;  ///< the gradient that is this rank's alone
  };
  std::vector<Seen> seen_;
};

}  // namespace fulgur::detail
