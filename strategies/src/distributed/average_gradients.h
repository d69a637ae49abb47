#pragma once

#include <utility>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/strategies/ddp.h"
#include "fulgur/strategies/process_group.h"

namespace fulgur::detail {

/// Averages gradients over ranks after the backward pass, in blocks of `bucket_cap_mb`. With `compression`, gradients
/// are sent in half the bytes.
class GradientAverage {
 public:
  explicit GradientAverage(const DDPStrategy::Options& options)
      : block_bytes_(static_cast<int64_t>(options.bucket_cap_mb * 1024 * 1024)), compression_(options.compression) {}

  /// Allocates the blocks for the gradients of `parameters`, so that `average` does not: if that failed on one rank,
  /// the others would wait for it.
  void reserve(const std::vector<Tensor>& parameters);
  /// Averages the gradients of the module's parameters in `optimizer`. All ranks must call it, with the same
  /// parameters. A parameter that has a gradient on only some ranks counts as zero on the others; one without a
  /// gradient on any rank keeps none.
  void average(const Optimizer& optimizer, ProcessGroup& group);

 private:
  /// The dtype that is sent, and the device.
  using Kind = std::pair<at::ScalarType, at::Device>;
  Kind kind_of(const Tensor& gradient) const;
  /// The memory of a block for `numel` elements, or for as many of them as fit in a block.
  Tensor block(const Kind& kind, int64_t numel);
  void average_alike(const Kind& kind, const std::vector<Tensor>& gradients, ProcessGroup& group);

  int64_t block_bytes_;
  DDPStrategy::Compression compression_;
  std::vector<std::pair<Kind, Tensor>> blocks_;
};

}  // namespace fulgur::detail
