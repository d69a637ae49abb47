#include "fulgur/strategies/pipeline_actions.h"

#include <algorithm>
#include <map>
#include <utility>

namespace fulgur::detail {
namespace {

using Actions = std::vector<PipelineAction>;
using enum ActionKind;

Actions gpipe(const PipelineShape& shape, int64_t rank) {
  Actions actions;
  for (int64_t i = 0; i < shape.micro_batches; ++i) actions.push_back({forward, rank, i});
  for (int64_t i = 0; i < shape.micro_batches; ++i) actions.push_back({backward, rank, i});
  return actions;
}

// Narayanan et al., 2019: as many forwards in advance as there are ranks after this one, then one forward and one
// backward by turns.
Actions one_forward_one_backward(const PipelineShape& shape, int64_t rank) {
  Actions actions;
  const int64_t count = shape.micro_batches, ahead = std::min(count, shape.ranks - 1 - rank);
  for (int64_t i = 0; i < ahead; ++i) actions.push_back({forward, rank, i});
  for (int64_t i = 0; i < count; ++i) {
    if (ahead + i < count) actions.push_back({forward, rank, ahead + i});
    actions.push_back({backward, rank, i});
  }
  return actions;
}

// ZB-H1 (Qi et al., 2023): the order of 1F1B, but the gradients of weights of rank r come r micro-batches later, where
// the rank would wait. No rank keeps more activations than rank 0 does.
Actions zero_bubble(const PipelineShape& shape, int64_t rank) {
  Actions actions;
  const int64_t count = shape.micro_batches, ahead = std::min(count, shape.ranks - 1 - rank);
  for (int64_t i = 0; i < ahead; ++i) actions.push_back({forward, rank, i});
  int64_t weights = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (ahead + i < count) actions.push_back({forward, rank, ahead + i});
    actions.push_back({backward_input, rank, i});
    if (i >= rank) actions.push_back({backward_weights, rank, weights++});
  }
  while (weights < count) actions.push_back({backward_weights, rank, weights++});
  return actions;
}

// Number of micro-batches in a round, in which each stage of a rank computes them before the next stage does.
int64_t round_length(const PipelineShape& shape) {
  return shape.micro_batches / std::max<int64_t>(shape.micro_batches / shape.ranks, 1);
}

// Narayanan et al., 2021.
Actions interleaved(const PipelineShape& shape, int64_t rank) {
  Actions actions;
  const int64_t round = round_length(shape), turns = shape.stages_per_rank;
  const int64_t count = shape.micro_batches * turns;
  const auto add = [&](ActionKind kind, int64_t index) {
    const int64_t turn = index % (round * turns) / round;
    actions.push_back({kind, (kind == forward ? turn : turns - 1 - turn) * shape.ranks + rank,
                       index / (round * turns) * round + index % round});
  };
  const int64_t ahead = std::min(count, (turns - 1) * round + 2 * (shape.ranks - 1 - rank));
  for (int64_t i = 0; i < ahead; ++i) add(forward, i);
  for (int64_t i = 0; i < count; ++i) {
    if (ahead + i < count) add(forward, ahead + i);
    add(backward, i);
  }
  return actions;
}

}  // namespace

std::string describe(const PipelineAction& action) {
  constexpr const char* kNames[] = {"forward", "backward", "backward to the input", "backward to the weights"};
  return std::string(kNames[static_cast<size_t>(action.kind)]) + " of micro-batch " +
         std::to_string(action.micro_batch) + " in stage " + std::to_string(action.stage);
}

std::vector<Actions> make_schedule(PipelineSchedule schedule, const PipelineShape& shape) {
  std::vector<Actions> ranks;
  for (int64_t rank = 0; rank < shape.ranks; ++rank) switch (schedule) {
      case PipelineSchedule::gpipe:
        ranks.push_back(gpipe(shape, rank));
        break;
      case PipelineSchedule::one_forward_one_backward:
        ranks.push_back(one_forward_one_backward(shape, rank));
        break;
      case PipelineSchedule::interleaved:
        ranks.push_back(interleaved(shape, rank));
        break;
      case PipelineSchedule::zero_bubble:
        ranks.push_back(zero_bubble(shape, rank));
        break;
    }
  return ranks;
}

std::vector<int64_t> received_gradients(const std::vector<Actions>& ranks, const PipelineShape& shape, int64_t rank) {
  const int64_t before = (rank + shape.ranks - 1) % shape.ranks;
  std::map<std::pair<int64_t, int64_t>, int64_t> at_forward;  // by stage and micro-batch
  int64_t received = 0;
  for (const auto& [kind, stage, micro_batch] : ranks[static_cast<size_t>(before)]) {
    if (kind == forward)
      at_forward[{stage, micro_batch}] = received;
    else if (kind != backward_weights && stage + 1 < shape.stages())
      ++received;
  }
  std::vector<int64_t> known;
  int64_t most = 0;
  for (const auto& [kind, stage, micro_batch] : ranks[static_cast<size_t>(rank)]) {
    if (kind == forward && stage > 0) most = std::max(most, at_forward.at({stage - 1, micro_batch}));
    known.push_back(most);
  }
  return known;
}

int64_t allowed_micro_batches(PipelineSchedule schedule, const PipelineShape& shape) {
  PipelineShape tried = shape;
  if (schedule == PipelineSchedule::interleaved)
    while (tried.micro_batches % round_length(tried) != 0) --tried.micro_batches;
  return tried.micro_batches;
}

double closed_form_bubble(PipelineSchedule schedule, const PipelineShape& shape) {
  const auto waits = static_cast<double>(shape.ranks - 1), count = static_cast<double>(shape.micro_batches);
  const int64_t per_micro_batch = schedule == PipelineSchedule::interleaved   ? shape.stages_per_rank
                                  : schedule == PipelineSchedule::zero_bubble ? 3
                                                                              : 1;
  return waits / (static_cast<double>(per_micro_batch) * count + waits);
}

}  // namespace fulgur::detail
