// Schedules of a pipeline as data: a simulator executes them, and knows their closed forms.
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <set>

#include "fulgur/core/text/text.h"
#include "fulgur/strategies/simulate_schedule.h"

namespace pipeline_schedule_test {

using namespace fulgur;
using namespace fulgur::detail;

namespace {

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::gpipe, PipelineSchedule::one_forward_one_backward,
                                           PipelineSchedule::interleaved, PipelineSchedule::zero_bubble};

template <class Check>
void each_shape(PipelineSchedule schedule, Check check) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks)
    for (int64_t turns = 1; turns <= (schedule == PipelineSchedule::interleaved ? 4 : 1); ++turns)
      for (int64_t count = 1; count <= 24; ++count) {
        const PipelineShape shape{.ranks = ranks, .stages_per_rank = turns, .micro_batches = count};
        if (allowed_micro_batches(schedule, shape) != count) continue;
        INFO(enum_text(schedule) << ", " << ranks << " ranks, " << turns << " stages each, " << count
                                 << " micro-batches");
        check(shape, make_schedule(schedule, shape));
      }
}

}  // namespace

TEST_CASE("pipeline: no schedule has a deadlock, and each does every action once, on the rank of its stage") {
  for (const PipelineSchedule schedule : kSchedules)
    each_shape(schedule, [&](const PipelineShape& shape, const auto& ranks) {
      REQUIRE(simulate(ranks, shape.stages()).deadlock.empty());
      std::set<std::tuple<ActionKind, int64_t, int64_t>> seen;
      for (int64_t rank = 0; rank < shape.ranks; ++rank)
        for (const PipelineAction& action : ranks[static_cast<size_t>(rank)]) {
          REQUIRE(action.stage % shape.ranks == rank);
          REQUIRE(seen.insert({action.kind, action.stage, action.micro_batch}).second);
        }
      const int64_t kinds = schedule == PipelineSchedule::zero_bubble ? 3 : 2;
      REQUIRE(static_cast<int64_t>(seen.size()) == kinds * shape.stages() * shape.micro_batches);
      for (const auto& [kind, stage, micro_batch] : seen)
        REQUIRE((micro_batch >= 0 && micro_batch < shape.micro_batches));
    });
}

TEST_CASE("pipeline: outputs that a rank receives show which of its gradients have arrived") {
  for (const PipelineSchedule schedule : kSchedules)
    each_shape(schedule, [&](const PipelineShape& shape, const auto& ranks) {
      for (int64_t rank = 0; rank < shape.ranks; ++rank) {
        const auto& actions = ranks[static_cast<size_t>(rank)];
        const std::vector<int64_t> received = received_gradients(ranks, shape, rank);
        REQUIRE(received.size() == actions.size());
        int64_t sent = 0;
        for (size_t i = 0; i < actions.size(); ++i) {
          const auto& [kind, stage, micro_batch] = actions[i];
          REQUIRE(received[i] <= sent);
          // All forwards come before the backwards of gpipe; with the others, few gradients are on their way.
          if (schedule == PipelineSchedule::gpipe) REQUIRE(received[i] == 0);
          if (schedule != PipelineSchedule::gpipe && kind == ActionKind::forward && stage > 0)
            REQUIRE(sent - received[i] <= 2 * shape.ranks);
          if (stage > 0 && (kind == ActionKind::backward || kind == ActionKind::backward_input)) ++sent;
        }
      }
    });
}

TEST_CASE("pipeline: the bubble of each schedule is its closed form") {
  for (const PipelineSchedule schedule : kSchedules)
    each_shape(schedule, [&](const PipelineShape& shape, const auto& ranks) {
      // The closed forms of these hold for whole rounds, and for pipelines that are filled.
      if (schedule == PipelineSchedule::interleaved && shape.micro_batches % shape.ranks != 0) return;
      if (schedule == PipelineSchedule::zero_bubble && shape.micro_batches < shape.ranks) return;
      const double bubble = simulate(ranks, shape.stages()).bubble;
      REQUIRE(bubble == Catch::Approx(closed_form_bubble(schedule, shape)).margin(1e-9));
      if (schedule == PipelineSchedule::zero_bubble && shape.ranks > 1)
        REQUIRE(bubble < closed_form_bubble(PipelineSchedule::one_forward_one_backward, shape));
    });
}

TEST_CASE("pipeline: 1F1B keeps as many activations as there are ranks from this one on, GPipe all") {
  each_shape(PipelineSchedule::gpipe, [](const PipelineShape& shape, const auto& ranks) {
    for (const int64_t most : simulate(ranks, shape.stages()).most_activations) REQUIRE(most == shape.micro_batches);
  });
  each_shape(PipelineSchedule::one_forward_one_backward, [](const PipelineShape& shape, const auto& ranks) {
    const auto most = simulate(ranks, shape.stages()).most_activations;
    for (int64_t rank = 0; rank < shape.ranks; ++rank)
      REQUIRE(most[static_cast<size_t>(rank)] == std::min(shape.micro_batches, shape.ranks - rank));
  });
  each_shape(PipelineSchedule::zero_bubble, [](const PipelineShape& shape, const auto& ranks) {
    for (const int64_t most : simulate(ranks, shape.stages()).most_activations)
      REQUIRE(most <= std::min(shape.micro_batches, shape.ranks));
  });
}

TEST_CASE("pipeline: actions in an order that cannot be executed are a deadlock, with the actions that wait") {
  const PipelineShape shape{.ranks = 2, .stages_per_rank = 1, .micro_batches = 2};
  auto ranks = make_schedule(PipelineSchedule::one_forward_one_backward, shape);
  // Rank 0 wants the gradient of the second micro-batch before it has sent the second output.
  ranks[0] = {{ActionKind::forward, 0, 0},
              {ActionKind::backward, 0, 1},
              {ActionKind::forward, 0, 1},
              {ActionKind::backward, 0, 0}};
  const SimulatedSchedule found = simulate(ranks, 2);
  REQUIRE(found.deadlock.size() == 2);
  CHECK(found.deadlock[0] ==
        "rank 0: backward of micro-batch 1 in stage 0 waits for the forward of micro-batch 1 in stage 0");
  CHECK(found.deadlock[1] ==
        "rank 1: forward of micro-batch 1 in stage 1 waits for the forward of micro-batch 1 in stage 0");
}

TEST_CASE(
    "pipeline: interleaved stages take turns in rounds of one length; other numbers of micro-batches do not fit") {
  const auto allowed = [](PipelineSchedule schedule, int64_t count) {
    return allowed_micro_batches(schedule, {.ranks = 4, .stages_per_rank = 2, .micro_batches = count});
  };
  CHECK(allowed(PipelineSchedule::interleaved, 8) == 8);
  CHECK(allowed(PipelineSchedule::interleaved, 9) == 8);
  CHECK(allowed(PipelineSchedule::interleaved, 10) == 10);
  CHECK(allowed(PipelineSchedule::interleaved, 3) == 3);
  CHECK(allowed(PipelineSchedule::zero_bubble, 9) == 9);
}

TEST_CASE("a simulated pipeline waits for its slowest stage and for messages") {
  const auto schedule = PipelineSchedule::one_forward_one_backward;
  const auto ranks = make_schedule(schedule, {.ranks = 2, .stages_per_rank = 1, .micro_batches = 8});
  const ActionTimes one{.forward = 1, .backward_input = 1, .backward_weights = 1};
  const ActionTimes twice{.forward = 2, .backward_input = 2, .backward_weights = 2};
  // Eight micro-batches in the slower stage, and a forward and a backward of one in the other.
  CHECK(simulate(ranks, {.stages = {one, twice}}).makespan == 8 * 6 + 3);
  // The second forward of the first stage hides two of the other's three.
  CHECK(simulate(ranks, {.stages = {twice, one}}).makespan == 8 * 6 + 3 - 2);
  // One to the second stage, and one back; between them, two to the next backward of a micro-batch.
  const double waits =
      simulate(ranks, {.stages = {one, one}, .messages = {0.5}}).makespan - simulate(ranks, 2).makespan;
  CHECK(waits >= 1);
  CHECK(simulate(ranks, {.stages = {one, one}}).makespan == simulate(ranks, 2).makespan);
}

}  // namespace pipeline_schedule_test
