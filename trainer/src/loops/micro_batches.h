#pragma once

#include <functional>
#include <vector>

#include "fulgur/core/contracts/strategy.h"
#include "run/services.h"

namespace fulgur::detail {

/// Calls `step` on each part of a batch, through the strategy and under the precision's guard, and passes the logged
/// values and requests of the parts to the run, in their order.
void run_parts(RunState& run, const std::vector<MicroBatch>& parts,
               const std::function<void(const MicroBatch&, size_t)>& step);

/// Throws an Error unless the loss has one element.
void require_scalar_loss(const Tensor& loss);

/// Throws an Error for a loss of integers, which has no gradient, and whose mean over parts would hide the reason.
void refuse_integer_loss(const Tensor& loss);

/// Throws an Error that says why nothing can be learned from a loss that requires no gradient.
[[noreturn]] void refuse_loss_without_graph(const Tensor& loss, const LightningModule& module);

/// The output of a whole batch's training step from those of its parts. The loss is the mean of their losses, weighted
/// by samples, on the run's device; undefined if a part has none. Other outputs are joined by `join_outputs`.
StepOutput training_step_of_parts(RunState& run, const std::vector<MicroBatch>& parts, int64_t batch_idx);

/// Outputs of parts, in the order of the samples, on the run's device: rows are concatenated; single values are
/// averaged, weighted by samples. Throws an Error if the parts have different names, or numbers of rows that differ
/// from their numbers of samples.
Outputs join_outputs(const RunState& run, const std::vector<MicroBatch>& parts, const std::vector<Outputs>& outputs);

}  // namespace fulgur::detail
