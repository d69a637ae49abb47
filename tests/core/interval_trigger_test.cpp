#include "fulgur/core/contracts/interval_trigger.h"

#include <catch2/catch_test_macros.hpp>

#include "support/fake_run_context.h"

namespace interval_trigger_test {

using namespace fulgur;

TEST_CASE("intervals of time are multiples over the whole run, whenever a process begins") {
  test::FakeRunContext run;
  IntervalTrigger whole(*Interval::parse("10s"));
  whole.start(run);
  std::vector<double> fired, fired_after;
  for (run.seconds = 0; run.seconds < 65; run.seconds += 4)
    if (whole.due(run)) fired.push_back(run.seconds);
  CHECK(fired == std::vector<double>{12, 20, 32, 40, 52, 60});
  // A process that resumes at 36 s fires where the other would have.
  IntervalTrigger resumed(*Interval::parse("10s"));
  run.seconds = 36;
  resumed.start(run);
  for (; run.seconds < 65; run.seconds += 4)
    if (resumed.due(run)) fired_after.push_back(run.seconds);
  CHECK(fired_after == std::vector<double>{40, 52, 60});
}

TEST_CASE("several intervals that pass at once count as one") {
  test::FakeRunContext run;
  IntervalTrigger trigger(*Interval::parse("10s"));
  trigger.start(run);
  run.seconds = 45;
  CHECK(trigger.due(run));
  CHECK_FALSE(trigger.due(run));
  run.seconds = 50;
  CHECK(trigger.due(run));
}

TEST_CASE("before a step, an interval of steps counts the step that is about to be made") {
  test::FakeRunContext run;
  IntervalTrigger steps(*Interval::parse("3st")), samples(*Interval::parse("3sa"));
  steps.start(run);
  samples.start(run);
  std::vector<int64_t> by_steps, by_samples;
  for (int64_t step = 1; step <= 7; ++step) {
    if (steps.due_with_next_step(run)) by_steps.push_back(step);
    if (samples.due_with_next_step(run)) by_samples.push_back(step);
    run.now.global_step = run.now.samples_seen = step;
  }
  CHECK(by_steps == std::vector<int64_t>{3, 6});
  // The samples of a step are counted after it.
  CHECK(by_samples == std::vector<int64_t>{4, 7});
}

}  // namespace interval_trigger_test
