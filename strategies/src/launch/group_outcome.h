#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulgur/strategies/child_process.h"

namespace fulgur::detail {

struct RankEnd {
  int64_t rank = 0;
  ProcessEnd end;
  std::string words;        ///< its own message, if any
  bool terminated = false;  ///< the launcher had sent SIGTERM before
  bool killed = false;      ///< by the launcher, since it did not respond
  int stop_signal = 0;      ///< that the launcher had forwarded before
};

/// How a group ended, and what follows from it.
struct GroupOutcome {
  int exit_code = 0;
  bool failed = false;
  bool restartable = false;
  std::string headline;              ///< the rank that failed, with its message; empty if none did
  std::vector<std::string> details;  ///< further lines for the report
  /// The same for a console that has the messages of the ranks: without them.
  std::string console_headline;
  std::vector<std::string> console_details;
};

/// `ends` in the order in which they were observed.
GroupOutcome classify_exits(const std::vector<RankEnd>& ends, int64_t world_size);

std::string without_period(std::string sentence);

/// `was ended by signal 9 (Killed)` or `exited with code 3: ` and the first line of its message. `several`: as of
/// several ranks, `were ended`.
std::string describe(const RankEnd& end, bool several = false);

}  // namespace fulgur::detail
