#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "plan.h"

namespace fulgur::test {

/// How the processes of a run have ended.
struct Ended {
  std::vector<int> codes;  ///< by rank: the exit code, or minus the signal
  std::string text;        ///< what they wrote, and what was thrown
  bool hung = false;       ///< some had to be ended after `kTimeout`
  bool all(int code) const;
};

inline constexpr int64_t kTimeoutS = 60;

/// Runs `work(rank)` in so many processes, each a fork of this one, and waits for all. What `work` throws is exit code
/// 1, or that of the Error. This process must not have started a thread: it trains nothing itself.
Ended in_processes(int64_t count, const std::filesystem::path& log, const std::function<int(int64_t rank)>& work);

/// Runs `trainer fit` of a config, in as many processes as there are ranks.
Ended fit(const Plan& config, const std::filesystem::path& folder, int64_t ranks = 1);

/// Runs `trainer fit` of a config as the program itself, with the parts of a plan as a plug-in. The program has no
/// clock that goes by batches, and no disk that is full.
Ended fit_by_program(const Plan& config, const std::filesystem::path& folder);

/// Tests and predicts with the last checkpoint of a fit in `folder`; the metric must be that of the predictions.
Ended evaluate(const Plan& config, const std::filesystem::path& folder, int64_t ranks);

}  // namespace fulgur::test
