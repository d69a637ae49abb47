#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "logging/log_store.h"
#include "logging/metric_store.h"
#include "run/evaluation_steps.h"
#include "run/rank_checks.h"
#include "run/run_state.h"
#include "run/step_rows.h"
#include "saving/checkpoint_store.h"
#include "services/nonfinite_policy.h"
#include "services/rank_consensus.h"
#include "services/seen_counts.h"

namespace fulgur::detail {

/// The objects that act on the state of a run.
struct Services {
  /// `act` carries out what the policy for NaN has decided about a row of metrics.
  Services(RunState& run, RunContext& run_context, CheckpointStore& checkpoint_store, LocalVotes votes,
           std::function<void(NonFiniteDecision)> act)
      : context(run_context),
        seen(run_context, run.counters, [&run] { return run.data_shares(); }),
        finite(run_context, logs, run.position.batch, [&run] { return run.describe_position(); }),
        consensus(std::move(votes), [&run](std::string reason) { run.stop_reason = std::move(reason); }),
        rank_checks(run),
        rows(run, logs, finite, std::move(act)),
        checkpoints(checkpoint_store) {}

  RunContext& context;  ///< the view that modules and callbacks have of the run
  LogStore logs;
  MetricStore metrics;
  SeenCounts seen;
  NonFinitePolicy finite;
  RankConsensus consensus;
  RankChecks rank_checks;
  StepRows rows;
  CheckpointStore& checkpoints;
  std::unique_ptr<EvaluationSteps> evaluation;  ///< made by the first evaluation whose steps may be captured
};

}  // namespace fulgur::detail
