#pragma once

#include <cstdint>
#include <functional>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// An exchange with other processes as an operation on CPU tensors, so that a recorder of steps sees it. A replay
/// exchanges again, with the values that it has. A step exchanges once, however often a recorder computes it to compare
/// its results: other processes may record other steps, and know nothing of it.
class FULGUR_API ExchangeOperation {
 public:
  /// `exchange` replaces the values of a tensor by those that the processes agree on, such as a sum. All of them must
  /// call it for the same tensors in the same order.
  explicit ExchangeOperation(std::function<void(const Tensor&)> exchange);
  ~ExchangeOperation();
  ExchangeOperation(const ExchangeOperation&) = delete;
  ExchangeOperation& operator=(const ExchangeOperation&) = delete;

  /// Exchanges `values`, a contiguous tensor on the CPU, in place. Passes exceptions of the exchange on.
  void operator()(const Tensor& values) const;

 private:
  int64_t number_;
};

}  // namespace fulgur
