#pragma once

#include "checkpointing/nonfinite_actions.h"
#include "context/live_run_context.h"
#include "context/run_checkpoint_host.h"
#include "process/signals.h"

namespace fulgur::detail {

/// The parts of a run. The loops take its state and its services.
struct Run {
  Run(const TrainerOptions& options, const TrainerComponents& components, TrainerFn fn)
      : state(options, components, fn),
        checkpoints(context, host,
                    {.async = state.options.async_checkpoint,
                     .stops_on_error = state.options.on_save_error == OnSaveError::stop,
                     .writer = state.options.checkpoint_writer.create()}),
        services(state, context, checkpoints,
                 {.stop_reason = [this] { return state.stop_reason; },
                  .signal = signals::received,
                  .take_save_request = signals::take_save_request,
                  .save_is_done = [this] { return checkpoints.save_is_done(); },
                  .writes_parts = [this] { return checkpoints.writes_parts(); }},
                 [this](NonFiniteDecision decision) { carry_out(state, services, decision); }) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  RunState state;
  // These keep references to the services, and use them once the run exists.
  LiveRunContext context{state, services};
  RunCheckpointHost host{state, services};
  CheckpointStore checkpoints;
  Services services;
};

}  // namespace fulgur::detail
