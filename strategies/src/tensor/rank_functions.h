#pragma once

#include <cstdint>
#include <vector>

#include "distributed/layer_exchange.h"
#include "fulgur/core/state/tensor.h"

/// Functions between values that all ranks of a group have and values of which each has a part, with gradients. The
/// group must exist until backward. All ranks call them alike. Second derivatives throw an Error.
namespace fulgur::detail {

/// The same value, for computations of which each rank does a part: its gradient is the sum over the ranks.
Tensor for_parts(const Tensor& value, LayerExchange& ranks);
/// The sum of the ranks' values, which all have then.
Tensor sum_of_ranks(const Tensor& value, LayerExchange& ranks);
/// This rank's part of a value that all have. The ranks divide `dim` evenly.
Tensor part_of_value(const Tensor& value, int64_t dim, LayerExchange& ranks);
/// The whole value from parts, of which the first ranks have `most` elements in `dim` and all together `size`.
Tensor whole_of_parts(const Tensor& part, int64_t dim, int64_t size, LayerExchange& ranks);

/// For values of which each rank has a part of the tokens, in dimension -2, and which have a multiple of the ranks: the
/// part of the sum of the ranks' values, and the whole value for computations of which each rank does a part.
Tensor tokens_of_sum(const Tensor& value, LayerExchange& ranks);
Tensor all_tokens_for_parts(const Tensor& part, LayerExchange& ranks);

/// The logits of some classes: (N, count) for `begin`, …, of `classes` classes.
struct ClassRange {
  int64_t begin = 0, classes = 0;
};
/// The cross entropy of logits of which each rank has a range of classes, in the order of the ranks, and targets (N)
/// int64, as `at::cross_entropy_loss` computes it from all logits. `reduction` is at::Reduction. Throws an IndexError
/// for targets that are no class, on the CPU.
Tensor cross_entropy_of_parts(const Tensor& logits, const Tensor& targets, const ClassRange& range, int64_t reduction,
                              int64_t ignore_index, LayerExchange& ranks);

}  // namespace fulgur::detail
