#include "checkpointing/nonfinite_actions.h"

#include "checkpointing/checkpoint_table.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/contracts/step_judge.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "saving/checkpoint_store.h"

namespace fulgur::detail {
namespace {

void roll_back_callbacks(RunState& run, Services& services, const StateTree& state) {
  const StateTree none;
  const StateTree& states = state.contains(checkpoint_keys::kCallbacks) ? state.at(checkpoint_keys::kCallbacks) : none;
  for (const auto& callback : run.callbacks)
    if (auto* const follows = dynamic_cast<FollowsWeights*>(callback.get()))
      follows->roll_back(services.context,
                         states.contains(callback->state_key()) ? states.at(callback->state_key()) : none);
}

void roll_back(RunState& run, Services& services) {
  const std::string text = services.finite.finding().text;
  services.checkpoints.wait_for_save();
  const auto path = services.checkpoints.last();
  if (!path && services.finite.finding().is_finite) {
    services.finite.restore_buffers();
    return log::warn("trainer.no_rollback",
                     cat(text, ": there is no checkpoint to return to, so the optimizer's step is skipped instead"));
  }
  if (!path) throw NonFiniteError(cat(text, ", and there is no checkpoint to roll back to."));
  if (run.strategy->steps_apart() && run.world_size() > 1)
    throw NonFiniteError(cat(text,
                             ": there is no rollback with local_sgd, whose ranks have their own weights. Resume "
                             "from the last checkpoint, ",
                             path->string()));
  services.checkpoints.discard_requests("a rollback");
  const CheckpointContent content =
      read_checkpoint(*path, CheckpointParts::all, Verify::whole, ReadTensors::when_needed);
  services.finite.count_rollback(content.state.at(checkpoint_keys::kNonfinite), *path);
  const auto whole = run.strategy->whole_parameters();
  load_module_state(*run.model, content.module);
  const CheckpointLoading load;
  Restoring restoring{.run = run, .services = services, .content = content, .load = load};
  load_entries(LoadPhase::optimizers, restoring, content.state);
  roll_back_callbacks(run, services, content.state);
  for (const PlannedOptimizer& planned : run.plan.optimizers) planned.optimizer->zero_grad();
  run.window.restart();
  // The current window's sum comes from discarded weights. A captured step would continue to add to it, so the window
  // ends here.
  if (run.device().is_cuda())
    services.rows.begin(RunningStage::train);
  else
    services.logs.discard_watched();
  services.rows.forgive();
  run.rewind_point.reset();
  for (const RegisteredJudge& judge : run.judges) judge.judge->on_rollback(services.context, content.state);
  const std::string news = cat(text, ": weights, optimizers and schedules were restored from ", *path,
                               "; training continues with the next batch");
  if (services.finite.is_first_rollback()) return log::warn("trainer.rolled_back", news);
  run.print(news);
}

}  // namespace

bool carry_out(RunState& run, Services& services, NonFiniteDecision decision) {
  switch (decision) {
    case NonFiniteDecision::proceed:
      return true;
    case NonFiniteDecision::skip:
      return false;
    case NonFiniteDecision::stop:
      run.checkpoints_allowed = false;
      run.stop_reason = cat("non-finite: ", services.finite.finding().what);
      return false;
    case NonFiniteDecision::roll_back:
      roll_back(run, services);
      return false;
  }
  return true;
}

}  // namespace fulgur::detail
