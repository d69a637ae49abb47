#pragma once

#include "context/live_run_context.h"
#include "context/run_checkpoint_host.h"

namespace fulgur::detail {

/// The parts of a run. The loops take its state and its services.
struct Run {
  Run(const TrainerOptions& options, const TrainerComponents& components, TrainerFn fn);
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
