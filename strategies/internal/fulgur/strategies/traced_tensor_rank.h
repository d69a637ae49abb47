#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/tensor_plan.h"
#include "fulgur/core/export.h"

namespace fulgur::detail {

/// What the ranks along the axis `tensor` exchange, of one rank.
struct TracedExchange {
  enum class Kind { all_reduce, all_gather, reduce_scatter };
  Kind kind = Kind::all_reduce;
  double bytes = 0;  ///< of what all ranks have together
};

/// The first of the ranks along `tensor`, without the others, for plans: in its lifetime, the parameters of a module on
/// the device `meta` have the shapes of this rank's parts. The rank computes as in a run; its exchanges are noted, and
/// give tensors without values. A process has at most one.
class FULGUR_API TracedTensorRank {
 public:
  /// Throws a ConfigError for a module that `ranks` ranks, 2 or more, cannot divide by the options and its own plan.
  TracedTensorRank(LightningModule& module, const std::map<std::string, TensorSplit>& options, int64_t ranks);
  ~TracedTensorRank();
  TracedTensorRank(const TracedTensorRank&) = delete;
  TracedTensorRank& operator=(const TracedTensorRank&) = delete;

  /// Computes forwards, whose operations may read divided parameters.
  void compute(const std::function<void()>& forward);
  /// A value that leaves the forward, of all ranks. Throws an Error if each of them has a part that the others need.
  Tensor whole(const Tensor& value, std::string_view what) const;
  /// The exchanges since the last call.
  std::vector<TracedExchange> take_exchanges();
  /// Names of divided parameters, and how they are divided.
  const std::map<std::string, TensorSplit>& divided() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur::detail
