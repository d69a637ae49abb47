#include "launch/group_outcome.h"

#include <algorithm>
#include <csignal>
#include <cstring>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr int kDistributed = static_cast<int>(ExitCode::distributed);

/// The exit code of an orderly end.
int orderly_code(const RankEnd& end) {
  if (!end.end.by_signal) return end.end.value;
  return static_cast<int>(end.end.value == SIGINT ? ExitCode::interrupted : ExitCode::terminated);
}

/// The full message is already on the console; here one line identifies it.
std::string first_line(const std::string& words) { return words.substr(0, words.find('\n')); }

bool failed_by_itself(const RankEnd& end) { return !is_orderly(end) && !end.terminated; }

}  // namespace

bool is_orderly(const RankEnd& end) {
  if (end.end.by_signal) return end.stop_signal != 0 && end.end.value == end.stop_signal;
  switch (static_cast<ExitCode>(end.end.value)) {
    case ExitCode::ok:
    case ExitCode::preempted:
    case ExitCode::interrupted:
    case ExitCode::terminated:
      return true;
    default:
      return false;
  }
}

std::string describe(const RankEnd& end) {
  if (end.killed) return "did not answer and was killed";
  std::string out = end.end.by_signal
                        ? cat("was ended by signal ", end.end.value, " (", ::strsignal(end.end.value), ")")
                        : cat("exited with code ", end.end.value);
  if (end.terminated && !is_orderly(end)) out += " when asked to";
  if (!end.words.empty()) out += cat(": ", first_line(end.words));
  return out;
}

std::string without_period(std::string sentence) {
  while (sentence.ends_with('.')) sentence.pop_back();
  return sentence;
}

GroupOutcome classify_exits(const std::vector<RankEnd>& ends, int64_t world_size) {
  GroupOutcome verdict;
  // A death by a signal takes precedence over a failure, and a failure over ranks that only noticed a lost peer.
  const auto find = [&](auto&& wanted) {
    return std::find_if(ends.begin(), ends.end(),
                        [&](const RankEnd& end) { return failed_by_itself(end) && wanted(end); });
  };
  auto culprit = find([](const RankEnd& end) { return end.end.by_signal; });
  if (culprit == ends.end()) culprit = find([](const RankEnd& end) { return end.end.value != kDistributed; });
  if (culprit == ends.end()) culprit = find([](const RankEnd&) { return true; });
  if (culprit == ends.end()) {
    // Rank 0 writes the checkpoints, so its code tells whether there is one.
    for (const RankEnd& end : ends) {
      if (!is_orderly(end)) continue;
      if (end.rank == 0 && orderly_code(end) != 0) {
        verdict.exit_code = orderly_code(end);
        break;
      }
      verdict.exit_code = std::max(verdict.exit_code, orderly_code(end));
    }
    return verdict;
  }

  verdict.failed = true;
  verdict.exit_code = culprit->end.by_signal ? kDistributed : culprit->end.value;
  verdict.restartable = verdict.exit_code != static_cast<int>(ExitCode::usage);

  const auto silent = std::find_if(ends.begin(), ends.end(), [](const RankEnd& end) { return end.killed; });
  const RankEnd* headline = &*culprit;
  if (!culprit->end.by_signal && culprit->end.value == kDistributed && silent != ends.end()) headline = &*silent;
  verdict.headline = cat("rank ", headline->rank, " of ", world_size, " ", describe(*headline));
  RankEnd shown = *headline;
  if (shown.rank == 0) shown.words.clear();
  verdict.news = cat("rank ", shown.rank, " of ", world_size, " ", describe(shown));
  std::vector<std::string> others;
  for (const RankEnd& end : ends) {
    if (&end == headline) continue;
    RankEnd other = end;
    if (!end.words.empty() && first_line(end.words) == first_line(headline->words)) other.words = "the same";
    others.push_back(without_period(cat("rank ", end.rank, " ", describe(other))));
  }
  if (!others.empty()) verdict.details.emplace_back(cat("The others: ", join(others, "; "), "."));
  if (culprit->end.by_signal && culprit->end.value == SIGKILL)
    verdict.details.emplace_back(
        "Signal 9 comes from the kernel when memory runs out (see dmesg), or from a kill command.");
  return verdict;
}

}  // namespace fulgur::detail
