#pragma once

#include <optional>
#include <string>

namespace fulgur::detail {

/// The job that this process is part of: `SLURM_JOB_ID` of the environment, if it is a job id (digits, or an array
/// element) and not an interactive job.
std::optional<std::string> slurm_job();

/// Requeues the job with `scontrol requeue JOB`, without a shell. Returns why it failed, or nullopt.
std::optional<std::string> slurm_requeue(const std::string& job);

}  // namespace fulgur::detail
