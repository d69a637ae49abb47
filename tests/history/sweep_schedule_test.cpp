// Which trials start, pause and are promoted: pure decisions over the records of the trials.
#include <catch2/catch_test_macros.hpp>

#include "fulgur/history/sweep_schedule.h"
#include "history/sweep_plan.h"

namespace sweep_schedule_test {

using namespace fulgur;
using namespace fulgur::test;
using namespace fulgur::history;

namespace {

/// Trials whose metric is a given number, whatever they train.
struct FakeSweep {
  SweepPlan plan;
  std::vector<TrialRecord> trials;
  std::vector<double> values;
  std::vector<int64_t> epochs_trained;

  FakeSweep(std::vector<double> of_points, const std::string& more, int64_t length) : values(std::move(of_points)) {
    std::string space;
    for (size_t i = 0; i < values.size(); ++i) space += (i ? "," : "") + std::to_string(i);
    plan = plan_of_text("method: grid\nmetric: m\nspace: {a: [" + space + "]}\n" + more, length);
    trials.resize(plan.trials.size());
    epochs_trained.resize(trials.size());
  }

  std::optional<size_t> start() {
    promote(plan, trials);
    const auto next = next_trial(plan, trials);
    if (next) trials[*next].status = TrialStatus::running;
    return next;
  }

  void end(size_t trial) {
    TrialRecord& record = trials[trial];
    record.value = values[static_cast<size_t>(plan.trials[trial].point)];
    const auto rung = rung_of(plan, record);
    record.status = rung ? TrialStatus::paused : TrialStatus::completed;
    epochs_trained[trial] = rung.value_or(1000);
    if (rung) record.at_rungs.push_back(record.value);
  }

  /// With so many jobs, of which the newest ends first.
  void run(size_t jobs) {
    std::vector<size_t> running;
    while (true) {
      for (auto next = running.size() < jobs ? start() : std::nullopt; next;
           next = running.size() < jobs ? start() : std::nullopt)
        running.push_back(*next);
      if (running.empty()) break;
      end(running.back());
      running.pop_back();
    }
    stop_paused(trials);
  }
};

using Epochs = std::vector<int64_t>;

}  // namespace

TEST_CASE("sweep schedule: without halving, trials start in their order and train to their end") {
  FakeSweep sweep({1, 2, 3}, "", 0);
  CHECK(sweep.start() == 0u);
  CHECK(sweep.start() == 1u);
  sweep.trials[0].status = TrialStatus::failed;
  CHECK(sweep.start() == 2u);
  CHECK_FALSE(sweep.start());
  CHECK_FALSE(rung_of(sweep.plan, sweep.trials[1]));
}

TEST_CASE("sweep schedule: interrupted trials start first") {
  FakeSweep sweep({1, 2, 3}, "", 0);
  sweep.trials[2].status = TrialStatus::interrupted;
  CHECK(sweep.start() == 2u);
  CHECK(sweep.start() == 0u);
}

TEST_CASE("sweep schedule: synchronous halving promotes the best third of each rung, whatever the number of jobs") {
  for (const size_t jobs : {1u, 2u, 4u, 20u}) {
    CAPTURE(jobs);
    FakeSweep sweep({9, 8, 7, 6, 5, 4, 3, 2, 1}, "halving: {factor: 3, min_epochs: 1}", 9);
    sweep.run(jobs);
    CHECK(sweep.epochs_trained == Epochs{1, 1, 1, 1, 1, 1, 3, 3, 1000});
    CHECK(sweep.trials[8].status == TrialStatus::completed);
    CHECK(sweep.trials[7].status == TrialStatus::stopped);
    CHECK(sweep.trials[8].at_rungs.size() == 2);
  }
}

TEST_CASE("sweep schedule: with mode max the largest values are promoted; of equal ones the first") {
  FakeSweep largest({1, 3, 2}, "mode: max\nhalving: {factor: 3, min_epochs: 1}", 2);
  largest.run(2);
  CHECK(largest.epochs_trained == Epochs{1, 1000, 1});
  FakeSweep equal({2, 2, 2}, "halving: {factor: 3, min_epochs: 1}", 2);
  equal.run(2);
  CHECK(equal.epochs_trained == Epochs{1000, 1, 1});
}

TEST_CASE("sweep schedule: at least one point is promoted, and of seven points two") {
  FakeSweep two({2, 1}, "halving: {factor: 3, min_epochs: 1}", 9);
  two.run(1);
  CHECK(two.epochs_trained == Epochs{1, 1000});
  FakeSweep seven({7, 6, 5, 4, 3, 2, 1}, "halving: {factor: 3, min_epochs: 1}", 3);
  seven.run(3);
  CHECK(seven.epochs_trained == Epochs{1, 1, 1, 1, 1, 1000, 1000});
}

TEST_CASE("sweep schedule: asynchronous halving promotes before all points have reached the rung") {
  FakeSweep sweep({1, 9, 8, 7, 6, 5}, "halving: {factor: 3, min_epochs: 1, promotion: async}", 3);
  for (const size_t expected : {0u, 1u, 2u}) {
    REQUIRE(sweep.start() == expected);
    sweep.end(expected);
  }
  // Of three points, one is promoted, while three have not started.
  CHECK(sweep.start() == 0u);
  CHECK(sweep.trials[0].target == 1);
  sweep.end(0);
  CHECK(sweep.trials[0].status == TrialStatus::completed);
  FakeSweep waits({1, 9, 8, 7, 6, 5}, "halving: {factor: 3, min_epochs: 1}", 3);
  for (const size_t expected : {0u, 1u, 2u, 3u}) {
    REQUIRE(waits.start() == expected);
    waits.end(expected);
  }
}

TEST_CASE("sweep schedule: asynchronous halving ends with at least one complete trial") {
  FakeSweep sweep({3, 2}, "halving: {factor: 4, min_epochs: 1, promotion: async}", 100);
  sweep.run(2);
  CHECK(sweep.epochs_trained == Epochs{1, 1000});
}

TEST_CASE("sweep schedule: points that have failed or have no value are not promoted, and hold up no rung") {
  FakeSweep sweep({1, 2, 3}, "halving: {factor: 3, min_epochs: 1}", 3);
  CHECK(sweep.start() == 0u);
  sweep.trials[0].status = TrialStatus::failed;
  sweep.start();
  sweep.end(1);
  sweep.start();
  sweep.end(2);
  CHECK(sweep.start() == 1u);
  FakeSweep all({1, 2}, "halving: {factor: 2, min_epochs: 1}", 3);
  for (TrialRecord& record : all.trials) record.status = TrialStatus::failed;
  CHECK_FALSE(all.start());
}

TEST_CASE("sweep schedule: a trial that ends before the rung counts with its last value and needs no promotion") {
  FakeSweep sweep({1, 2, 3}, "halving: {factor: 3, min_epochs: 2}", 4);
  sweep.start();
  sweep.trials[0].status = TrialStatus::completed;
  sweep.trials[0].value = 1;
  sweep.start();
  sweep.end(1);
  sweep.start();
  sweep.end(2);
  CHECK_FALSE(sweep.start());
  stop_paused(sweep.trials);
  CHECK(sweep.trials[0].status == TrialStatus::completed);
  CHECK(sweep.trials[1].status == TrialStatus::stopped);
}

TEST_CASE("sweep schedule: the seeds of a point are promoted together, by their mean") {
  FakeSweep sweep({0, 0}, "seeds: 2\nhalving: {factor: 2, min_epochs: 1}", 2);
  const double values[] = {1, 9, 4, 4};
  for (size_t i = 0; i < 4; ++i) {
    REQUIRE(sweep.start() == i);
    sweep.end(i);
    sweep.trials[i].at_rungs[0] = values[i];
  }
  CHECK(sweep.start() == 2u);
  CHECK(sweep.start() == 3u);
  CHECK_FALSE(sweep.start());
  CHECK(sweep.trials[0].target == 0);
}

TEST_CASE("sweep schedule: paused trials stay paused while others are still to run") {
  FakeSweep sweep({1, 2}, "halving: {factor: 2, min_epochs: 1}", 2);
  sweep.start();
  sweep.end(0);
  sweep.start();
  sweep.trials[1].status = TrialStatus::interrupted;
  stop_paused(sweep.trials);
  CHECK(sweep.trials[0].status == TrialStatus::paused);
}

TEST_CASE("sweep schedule: a sweep that was ended anywhere and continues ends like one that was not") {
  const std::vector<double> values{5, 3, 8, 1, 9, 2, 7, 4, 6};
  const std::string halving = "halving: {factor: 2, min_epochs: 1}";
  FakeSweep quiet(values, halving, 16);
  quiet.run(2);
  for (int ends = 0; ends < 20; ++ends) {
    CAPTURE(ends);
    FakeSweep sweep(values, halving, 16);
    for (int i = 0; i < ends; ++i)
      if (const auto next = sweep.start()) sweep.end(*next);
    sweep.start();  // a process that is killed
    continue_sweep(sweep.plan, sweep.trials, false);
    sweep.run(2);
    CHECK(sweep.epochs_trained == quiet.epochs_trained);
    for (size_t i = 0; i < values.size(); ++i) {
      CHECK(sweep.trials[i].status == quiet.trials[i].status);
      CHECK(sweep.trials[i].at_rungs == quiet.trials[i].at_rungs);
    }
  }
}

TEST_CASE("sweep schedule: failed trials start again only on request") {
  FakeSweep sweep({1, 2}, "", 0);
  sweep.trials[0].status = TrialStatus::failed;
  sweep.trials[0].reason = "exit code 1";
  sweep.trials[1].status = TrialStatus::completed;
  continue_sweep(sweep.plan, sweep.trials, false);
  CHECK_FALSE(sweep.start());
  continue_sweep(sweep.plan, sweep.trials, true);
  CHECK(sweep.trials[0].reason.empty());
  CHECK(sweep.start() == 0u);
  CHECK(sweep.trials[1].status == TrialStatus::completed);
}

}  // namespace sweep_schedule_test
