#include "loops/rewind.h"

#include "checkpointing/checkpoint_store.h"
#include "fulgur/core/state/let_go.h"

namespace fulgur::detail {

void count_stepped_batch(RunState& run) {
  Progress& counters = run.counters;
  // In manual optimization the step is counted after training_step.
  if (counters.global_step == run.step.global_step_before) ++counters.global_step;
  counters.batches.processed = counters.batches.completed = counters.batches.started;
  counters.batches_total.processed = counters.batches_total.completed = counters.batches_total.started;
}

void rewind_to_batch_start(RunState& run, Services& services) {
  if (!run.position.in_batch) return;
  run.position.in_batch = false;
  let_go(run.position.batch);
  Progress& counters = run.counters;
  if (run.step.progress == StepProgress::done) {
    count_stepped_batch(run);
    if (!run.failed_alone) services.rows.end_batch(RunningStage::train, false);
  } else if (run.rewind_point.there()) {
    run.rewind_point.restore(run, services);
    run.rewound = true;
  } else {
    // Values that the batch logged and random numbers that it drew are kept, so a run cannot resume from this state.
    services.checkpoints.discard_requests("the batch in which it was requested has failed");
    counters.batches.fall_back();
    counters.batches_total.fall_back();
    services.seen.fall_back();
    run.stages[RunningStage::train].loaders.front()->unread();
  }
  // Gradients of the window's earlier batches are still needed.
  if (run.step.progress == StepProgress::none || run.rewound) return;
  // Gradients of an unfinished backward are useless.
  for (auto& [name, value] : unique_parameters(*run.model)) value.mutable_grad().reset();
  run.window.done = run.window.losses = 0;
}

}  // namespace fulgur::detail
