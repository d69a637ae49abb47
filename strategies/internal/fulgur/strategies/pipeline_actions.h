#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/strategies/pipeline_schedule.h"

namespace fulgur::detail {

enum class ActionKind {
  forward,
  backward,          ///< gradients of the stage's input and of its weights
  backward_input,    ///< only those of the input, which the stage before waits for
  backward_weights,  ///< only those of the weights, at any time after `backward_input`
};

/// What a rank does next. A forward receives its input from the stage before, if that is on another rank, and sends its
/// output to the stage after; a backward does so with gradients, in the other direction. Sends do not wait.
struct PipelineAction {
  ActionKind kind = ActionKind::forward;
  int64_t stage = 0;
  int64_t micro_batch = 0;
  bool operator==(const PipelineAction&) const = default;
};

/// `forward of micro-batch 3 in stage 1`.
std::string describe(const PipelineAction& action);

/// The size of a pipeline. Stage s is on rank s % ranks.
struct PipelineShape {
  int64_t ranks = 1;
  int64_t stages_per_rank = 1;
  int64_t micro_batches = 1;
  int64_t stages() const { return ranks * stages_per_rank; }
};

/// The actions of each rank, in order. The shape must be one that the schedule allows.
FULGUR_API std::vector<std::vector<PipelineAction>> make_schedule(PipelineSchedule schedule,
                                                                  const PipelineShape& shape);

/// For each action of a rank: how many of the gradients that it has sent the rank before it has received, as far as the
/// outputs show that it has received from there by then, its own of this action included.
FULGUR_API std::vector<int64_t> received_gradients(const std::vector<std::vector<PipelineAction>>& ranks,
                                                   const PipelineShape& shape, int64_t rank);

/// The largest number of micro-batches up to `shape.micro_batches` that the schedule allows. Interleaved stages take
/// turns in rounds of the same length; the others allow any number.
FULGUR_API int64_t allowed_micro_batches(PipelineSchedule schedule, const PipelineShape& shape);

/// The fraction of a step in which a rank waits, if all stages take the same time, a backward twice that of a forward,
/// and each of its halves that of a forward; for zero_bubble with at least as many micro-batches as ranks.
FULGUR_API double closed_form_bubble(PipelineSchedule schedule, const PipelineShape& shape);

}  // namespace fulgur::detail
