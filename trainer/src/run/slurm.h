#pragma once

#include <optional>
#include <string>

namespace fulgur::detail {

/// The job that this process is part of: `SLURM_JOB_ID` of the environment, where it is a job's id (digits, or an
/// element of an array) and not an interactive one.
std::optional<std::string> slurm_job();

/// Has the job queued again, by `scontrol requeue JOB`, without a shell. Returns why it could not be, or nothing.
std::optional<std::string> slurm_requeue(const std::string& job);

}  // namespace fulgur::detail
