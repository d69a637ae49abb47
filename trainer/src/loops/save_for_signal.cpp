#include "loops/save_for_signal.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

// The job that this process is part of: `SLURM_JOB_ID` of the environment, if it is a job id (digits, or an array
// element) and not an interactive job.
std::optional<std::string> slurm_job() {
  const char* text = std::getenv("SLURM_JOB_ID");
  if (!text) return std::nullopt;
  const std::string job = text;
  const char* name = std::getenv("SLURM_JOB_NAME");
  if (name && (std::strcmp(name, "bash") == 0 || std::strcmp(name, "interactive") == 0)) return std::nullopt;
  const std::vector<std::string> parts = split_text(job, '_');
  const bool good = parts.size() <= 2 && std::ranges::all_of(parts, all_digits);
  return good && job.size() <= 32 ? std::optional(job) : std::nullopt;
}

// Requeues the job with `scontrol requeue JOB`, without a shell. Returns why it failed, or nullopt.
std::optional<std::string> slurm_requeue(const std::string& job) {
  std::string program = "scontrol", verb = "requeue", id = job;
  char* const arguments[] = {program.data(), verb.data(), id.data(), nullptr};
  pid_t child = 0;
  if (const int error = posix_spawnp(&child, "scontrol", nullptr, nullptr, arguments, environ); error != 0)
    return cat("scontrol cannot be started: ", std::strerror(error));
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return cat("waiting for scontrol failed: ", std::strerror(errno));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return std::nullopt;
  return WIFEXITED(status) ? cat("scontrol ended with code ", WEXITSTATUS(status))
                           : cat("scontrol ended by signal ", WTERMSIG(status));
}

}  // namespace

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
