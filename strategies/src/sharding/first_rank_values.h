#pragma once

#include "fulgur/core/state/tensor.h"
#include "fulgur/strategies/process_group.h"

namespace fulgur::detail {

/// Whether this rank is the one whose values all others get.
bool is_first_rank(const ProcessGroup& ranks);
/// Replaces `values` by those of the first rank. All ranks must call it. `strategy` is for errors.
void send_from_first_rank(ProcessGroup& ranks, const char* strategy, const Tensor& values);
/// The tensor, or the one for which it stands (`stored_values`), on `device`. All ranks must call it for the same
/// tensors, and get the values that the first rank reads or computes: those of the others are never read.
Tensor values_of_first_rank(ProcessGroup& ranks, const char* strategy, const Tensor& tensor, at::Device device);

}  // namespace fulgur::detail
