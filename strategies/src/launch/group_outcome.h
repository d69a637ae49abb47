#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/child_process.h"

namespace fulgur::detail {

/// How one rank of a group ended.
struct RankEnd {
  int64_t rank = 0;
  ProcessEnd end;
  std::string words;    ///< its own, where it had some
  bool told = false;    ///< the launcher had sent SIGTERM before
  bool killed = false;  ///< by the launcher, since it did not answer
  int stop_signal = 0;  ///< that the launcher had passed on before
};

/// What a group's ends mean.
struct GroupOutcome {
  int exit_code = 0;
  bool failed = false;
  bool restartable = false;
  std::string headline;              ///< the rank that failed; empty where none did
  std::vector<std::string> details;  ///< further lines for the report
};

/// True for an end in order: codes 0, 75, 130, 143, or by a signal that was passed on.
bool is_orderly(const RankEnd& end);

/// `ends` in the order in which they were seen.
GroupOutcome classify_exits(const std::vector<RankEnd>& ends, int64_t world_size);

/// A sentence to go on with.
std::string without_period(std::string sentence);

/// `was ended by signal 9 (Killed)` or `exited with code 3: ` and the first line of its words.
std::string describe(const RankEnd& end);

}  // namespace fulgur::detail
