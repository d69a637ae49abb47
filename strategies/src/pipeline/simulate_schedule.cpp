#include "fulgur/strategies/simulate_schedule.h"

#include <algorithm>
#include <optional>

namespace fulgur::detail {
namespace {

using enum ActionKind;

/// When the parts of a micro-batch's work in a stage were done.
class Done {
 public:
  Done(const std::vector<std::vector<PipelineAction>>& ranks, int64_t stages) : stages_(static_cast<size_t>(stages)) {
    for (const auto& actions : ranks)
      for (const PipelineAction& action : actions)
        if (const size_t size = place(action) + 1; size > ends_.size()) ends_.resize(size);
  }
  std::optional<double> at(const PipelineAction& action) const {
    return place(action) < ends_.size() ? ends_[place(action)] : std::nullopt;
  }
  /// A whole backward counts as that of the input, too.
  void note(PipelineAction action, double end) {
    if (action.kind == backward) action.kind = backward_input;
    ends_[place(action)] = end;
  }

 private:
  size_t place(const PipelineAction& action) const {
    const size_t kind = action.kind == forward ? 0 : action.kind == backward_weights ? 2 : 1;
    return (static_cast<size_t>(action.micro_batch) * stages_ + static_cast<size_t>(action.stage)) * 3 + kind;
  }
  size_t stages_;
  std::vector<std::optional<double>> ends_;
};

/// What an action needs.
std::vector<PipelineAction> needs(const PipelineAction& action, int64_t stages) {
  const auto [kind, stage, micro_batch] = action;
  if (kind == forward)
    return stage > 0 ? std::vector<PipelineAction>{{forward, stage - 1, micro_batch}} : std::vector<PipelineAction>{};
  if (kind == backward_weights) return {{backward_input, stage, micro_batch}};
  std::vector<PipelineAction> needed{{forward, stage, micro_batch}};
  if (stage + 1 < stages) needed.push_back({backward_input, stage + 1, micro_batch});
  return needed;
}

double message_between(int64_t a, int64_t b, const StageTimes& times) {
  return a == b || times.messages.empty() ? 0 : times.messages.at(static_cast<size_t>(std::min(a, b)));
}

}  // namespace

double ActionTimes::of(ActionKind kind) const {
  switch (kind) {
    case ActionKind::forward:
      return forward;
    case ActionKind::backward:
      return backward_input + backward_weights;
    case ActionKind::backward_input:
      return backward_input;
    case ActionKind::backward_weights:
      return backward_weights;
  }
  return 0;
}

SimulatedSchedule simulate(const std::vector<std::vector<PipelineAction>>& ranks, const StageTimes& times) {
  const auto stages = static_cast<int64_t>(times.stages.size());
  SimulatedSchedule result;
  result.most_activations.resize(ranks.size());
  Done done(ranks, stages);
  std::vector<size_t> next(ranks.size());
  std::vector<int64_t> activations(ranks.size());
  std::vector<double> now(ranks.size());
  double busy = 0;
  // The first thing that the next action of a rank waits for.
  const auto waits_for = [&](size_t rank) -> std::optional<PipelineAction> {
    for (const PipelineAction& needed : needs(ranks[rank][next[rank]], stages))
      if (!done.at(needed)) return needed;
    return std::nullopt;
  };
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      for (; next[rank] < ranks[rank].size() && !waits_for(rank); ++next[rank], moves = true) {
        const PipelineAction& action = ranks[rank][next[rank]];
        for (const PipelineAction& needed : needs(action, stages))
          now[rank] = std::max(now[rank], *done.at(needed) + message_between(needed.stage, action.stage, times));
        const double takes = times.stages[static_cast<size_t>(action.stage)].of(action.kind);
        now[rank] += takes;
        busy += takes;
        done.note(action, now[rank]);
        if (action.kind == forward) ++activations[rank];
        result.most_activations[rank] = std::max(result.most_activations[rank], activations[rank]);
        if (action.kind == backward || action.kind == backward_weights) --activations[rank];
      }
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    result.makespan = std::max(result.makespan, now[rank]);
    if (next[rank] == ranks[rank].size()) continue;
    result.deadlock.push_back("rank " + std::to_string(rank) + ": " + describe(ranks[rank][next[rank]]) +
                              " waits for the " + describe(*waits_for(rank)));
  }
  if (result.makespan > 0) result.bubble = 1 - busy / (result.makespan * static_cast<double>(ranks.size()));
  return result;
}

SimulatedSchedule simulate(const std::vector<std::vector<PipelineAction>>& ranks, int64_t stages,
                           const ActionTimes& times) {
  return simulate(ranks, {.stages = std::vector(static_cast<size_t>(stages), times)});
}

}  // namespace fulgur::detail
