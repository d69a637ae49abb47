#pragma once

#include <cstdint>

#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// The exchanges between the ranks that compute layers together. All of them call the same ones in the same order.
class LayerExchange {
 public:
  LayerExchange() = default;
  LayerExchange(const LayerExchange&) = delete;
  LayerExchange& operator=(const LayerExchange&) = delete;
  virtual ~LayerExchange() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  virtual Tensor all_reduce(const Tensor& value, ReduceOp op) = 0;
  /// Replaces a tensor, which is contiguous, by the sum over ranks; the host does not wait for a GPU.
  virtual void sum(Tensor values) = 0;
  /// Rows of all ranks, whose shapes are known to match; no gradients.
  virtual Tensor gather_rows(const Tensor& value) = 0;
  /// This rank's row of the sum over the ranks.
  virtual Tensor reduce_rows(const Tensor& rows) = 0;
};

}  // namespace fulgur::detail
