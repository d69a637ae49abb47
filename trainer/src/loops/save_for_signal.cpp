#include "loops/save_for_signal.h"

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "process/slurm.h"

namespace fulgur::detail {

void save_for_signal(RunState& run, Services& services, bool requeues) {
  if (run.checkpoints_allowed && run.counters.global_step > 0 && !services.checkpoints.is_saved()) {
    services.context.request_checkpoint(checkpoint_of_now(services.context, "SIGUSR1"));
    services.checkpoints.act_on_requests();
  }
  services.checkpoints.wait_for_save();
  run.print(cat("SIGUSR1: saved, training continues",
                services.context.last_checkpoint() ? cat(" (", *services.context.last_checkpoint(), ")") : ""));
  const auto job = slurm_job();
  if (!job || !requeues || !run.is_global_zero()) return;
  if (const auto failure = slurm_requeue(*job))
    log::error(cat("job ", *job, " was not requeued: ", *failure));
  else
    run.print(cat("job ", *job, " was requeued"));
}

}  // namespace fulgur::detail
