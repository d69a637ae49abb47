#include "loops/roll_back.h"

#include "checkpointing/restore_optimizers.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/log.h"
#include "fulgur/core/text.h"
#include "loops/run.h"

namespace fulgur::detail {

void roll_back(Run& run) {
  const NonFinitePolicy::Finding& finding = run.finite.finding();
  const std::string text = cat("[trainer.on_nonfinite] ", finding.what, " is not finite ", finding.where);
  run.checkpoints.wait_for_save();
  const auto path = run.checkpoints.last();
  if (!path) throw NonFiniteError(cat(text, ", and there is no checkpoint to roll back to."));
  run.checkpoints.discard_requests("a rollback");
  const CheckpointContent content = read_checkpoint(*path);
  run.finite.count_rollback(content.state.at("nonfinite"), *path);
  load_module_state(*run.model, content.module);
  restore_optimizers(run, content, {});
  for (const PlannedOptimizer& planned : run.plan.optimizers) planned.optimizer->zero_grad();
  run.window.done = run.window.losses = 0;
  // The current window's sum is from discarded weights. A captured step still watches with that sum, so the window ends
  // here.
  if (run.device().is_cuda())
    run.rows.begin(RunningStage::train);
  else
    run.logs.forget_watched();
  run.rows.forgive();
  run.rewind_point.drop();
  log::error(cat(text, ": weights, optimizers and schedules are those of ", *path,
                 " again; training continues with the next batch."));
}

}  // namespace fulgur::detail
