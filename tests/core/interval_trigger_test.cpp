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

}  // namespace interval_trigger_test
