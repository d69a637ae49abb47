#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "plan.h"

namespace fulgur::test {

/// What became of a relation between runs of one plan.
struct Verdict {
  enum class Kind {
    holds,
    no_matter,  ///< the relation says nothing of such a plan
    differs,
    refused,  ///< the config is an error
    failed,   ///< a run ended otherwise
    hung,
  };
  Kind kind = Kind::holds;
  std::string text = {};
  bool bad() const { return kind != Kind::holds && kind != Kind::no_matter; }
};

// Things that must hold between two ways of doing the same run.
Verdict equals_loop_by_hand(const Plan& plan, const std::filesystem::path& folder);
Verdict ranks_equal_one(const Plan& plan, const std::filesystem::path& folder);
Verdict meshes_equal_one(const Plan& plan, const std::filesystem::path& folder);
Verdict killed_equals_quiet(const Plan& plan, const std::filesystem::path& folder);
Verdict killed_ranks_equal_quiet(const Plan& plan, const std::filesystem::path& folder);
Verdict killed_meshes_equal_quiet(const Plan& plan, const std::filesystem::path& folder);
Verdict other_ranks_or_batches_see_each_sample_once(const Plan& plan, const std::filesystem::path& folder);
Verdict asynchronous_saves_equal_synchronous(const Plan& plan, const std::filesystem::path& folder);
Verdict devices_equal_one(const Plan& plan, const std::filesystem::path& folder);
Verdict workers_equal_none(const Plan& plan, const std::filesystem::path& folder);
Verdict metrics_equal_predictions(const Plan& plan, const std::filesystem::path& folder);
Verdict rollback_gives_up(const Plan& plan, const std::filesystem::path& folder);
Verdict schedules_follow_samples(const Plan& plan, const std::filesystem::path& folder);
/// The program itself, which receives SIGUSR1 before it trains or after it has trained.
Verdict signalled_program_equals_quiet(const Plan& plan, const std::filesystem::path& folder);
/// With every option of a plan; some of the captured runs are killed and resumed.
Verdict captured_equals_eager_on_cpu(const Plan& plan, const std::filesystem::path& folder);
/// The same of two or three ranks of ddp.
Verdict captured_ranks_equal_eager(const Plan& plan, const std::filesystem::path& folder);
/// On CUDA devices, real or simulated.
Verdict captured_equals_eager(const Plan& plan, const std::filesystem::path& folder);

}  // namespace fulgur::test
