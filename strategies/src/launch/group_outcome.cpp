#include "launch/group_outcome.h"

#include <algorithm>
#include <array>
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

// True for codes 0, 75, 130, 143, or a forwarded signal.
bool is_orderly(const RankEnd& end) {
  if (end.end.by_signal) return end.stop_signal != 0 && end.end.value == end.stop_signal;
  constexpr std::array kOrderly{ExitCode::ok, ExitCode::preempted, ExitCode::interrupted, ExitCode::terminated};
  return std::ranges::find(kOrderly, static_cast<ExitCode>(end.end.value)) != kOrderly.end();
}

bool failed_by_itself(const RankEnd& end) { return !is_orderly(end) && !end.terminated; }

RankEnd with_words(RankEnd end, std::string words) {
  end.words = std::move(words);
  return end;
}

/// `1-3, 5`
std::string ranks_text(std::vector<int64_t> ranks) {
  std::ranges::sort(ranks);
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t last = begin;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    parts.push_back(last == begin ? cat(ranks[begin]) : cat(ranks[begin], "-", ranks[last]));
    begin = last + 1;
  }
  return join(parts);
}

/// `The others: rank 0 exited with code 5; ranks 2-3 exited with code 2: the same.` In the order of the first of each.
std::string others_text(const std::vector<RankEnd>& others) {
  struct Group {
    std::string text;
    RankEnd first;
    std::vector<int64_t> ranks;
  };
  std::vector<Group> groups;
  for (const RankEnd& end : others) {
    const std::string text = describe(end);
    const auto known = std::ranges::find_if(groups, [&](const Group& group) { return group.text == text; });
    if (known != groups.end())
      known->ranks.push_back(end.rank);
    else
      groups.push_back({text, end, {end.rank}});
  }
  std::vector<std::string> parts;
  for (const Group& group : groups) {
    const bool several = group.ranks.size() > 1;
    parts.push_back(without_period(
        cat(several ? "ranks " : "rank ", ranks_text(group.ranks), " ", describe(group.first, several))));
  }
  return cat("The others: ", join(parts, "; "), ".");
}

}  // namespace

std::string describe(const RankEnd& end, bool several) {
  const char* const be = several ? "were" : "was";
  if (end.killed) return cat("did not answer and ", be, " killed");
  std::string out = end.end.by_signal
                        ? cat(be, " ended by signal ", end.end.value, " (", ::strsignal(end.end.value), ")")
                        : cat("exited with code ", end.end.value);
  if (end.terminated && !is_orderly(end)) out += " when asked to";
  // The full message is already on the console; here one line identifies it.
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
    return std::ranges::find_if(ends, [&](const RankEnd& end) { return failed_by_itself(end) && wanted(end); });
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

  const auto silent = std::ranges::find_if(ends, [](const RankEnd& end) { return end.killed; });
  const RankEnd* headline = &*culprit;
  if (!culprit->end.by_signal && culprit->end.value == kDistributed && silent != ends.end()) headline = &*silent;
  verdict.headline = cat("rank ", headline->rank, " of ", world_size, " ", describe(*headline));
  verdict.console_headline = cat("rank ", headline->rank, " of ", world_size, " ", describe(with_words(*headline, "")));
  std::vector<RankEnd> others, on_console;
  for (const RankEnd& end : ends) {
    if (&end == headline) continue;
    const bool same = !end.words.empty() && first_line(end.words) == first_line(headline->words);
    others.push_back(same ? with_words(end, "the same") : end);
    on_console.push_back(with_words(end, same ? "the same" : ""));
  }
  if (!others.empty()) {
    verdict.details.push_back(others_text(others));
    verdict.console_details.push_back(others_text(on_console));
  }
  if (culprit->end.by_signal && culprit->end.value == SIGKILL)
    for (auto* const details : {&verdict.details, &verdict.console_details})
      details->emplace_back("Signal 9 comes from the kernel when memory runs out (see dmesg), or from a kill command.");
  return verdict;
}

}  // namespace fulgur::detail
