#include "fulgur/callbacks/timer.h"

#include "callbacks/scored.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <thread>

#include "support/expect_error.h"
#include "support/fake_run_context.h"

namespace timer_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

Interval seconds(double value) { return {value, Interval::Unit::seconds}; }

struct Slow : SelfPlanned {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return SelfPlanned::training_step(batch, batch_idx);
  }
};

struct Timed {
  FitReport report;
  std::shared_ptr<Timer> timer;
};

// Two epochs of four steps, 5 ms each at least.
Timed train(Timer::Options options, const TemporaryFolder& folder, int64_t epochs = 2,
            const CheckpointChoice& from = {}, const CallbackFilter& filter = {}) {
  TrainerOptions trainer_options = quiet(folder);
  trainer_options.max_epochs = epochs;
  Timed run{.report = {}, .timer = std::make_shared<Timer>(options)};
  TrainerComponents components;
  run.timer->set_common_options(filter);
  components.add(run.timer);
  run.report = Trainer(trainer_options, components).fit(std::make_shared<Slow>(), regression_data(16, 4), from);
  return run;
}

}  // namespace

TEST_CASE("Timer ends a fit whose time is over, after a step or after an epoch") {
  TemporaryFolder folder;
  LogLines log;
  const Timed by_step = train({.duration = seconds(1e-9)}, folder);
  CHECK(by_step.report.global_step == 1);
  CHECK(by_step.report.stop_reason == "Timer: the training time of 0.000000001s is over");
  CHECK(log.count("is over after") == 1);
  CHECK(*by_step.timer->time_remaining_s() < 0);
  const Timed by_epoch =
      train({.duration = seconds(1e-9), .interval = ScheduleInterval::epoch, .verbose = false}, folder);
  CHECK(by_epoch.report.epochs == 1);
  CHECK(by_epoch.report.global_step == 4);
  CHECK(log.count("is over after") == 1);  // verbose is off
  CHECK(train({.duration = seconds(3600)}, folder).report.stop_reason == "max_epochs");
  const Timed without = train({}, folder);
  CHECK(without.report.global_step == 8);
  CHECK_FALSE(without.timer->time_remaining_s());
}

TEST_CASE("Timer measures each stage") {
  TemporaryFolder folder;
  const Timed run = train({.duration = seconds(3600)}, folder);
  const Timer& timer = *run.timer;
  CHECK(timer.time_elapsed_s() >= 8 * 0.005);
  CHECK(timer.time_elapsed_s() <= run.report.train_seconds);
  CHECK(*timer.time_remaining_s() == 3600 - timer.time_elapsed_s());
  REQUIRE(timer.end_time_s());
  CHECK(timer.time_elapsed_s() == *timer.end_time_s() - *timer.start_time_s());
  CHECK(timer.start_time_s(RunningStage::validate) >= timer.start_time_s());
  CHECK(timer.end_time_s(RunningStage::validate) <= timer.end_time_s());
  CHECK(timer.time_elapsed_s(RunningStage::validate) > 0);
  CHECK_FALSE(timer.start_time_s(RunningStage::test));
  CHECK(timer.time_elapsed_s(RunningStage::test) == 0);

  TrainerComponents components;
  components.add(run.timer);
  Trainer trainer(quiet(folder), components);
  trainer.test(std::make_shared<SelfPlanned>(), regression_data(8, 4));
  CHECK(timer.time_elapsed_s(RunningStage::test) > 0);
  CHECK(timer.time_elapsed_s() == 0);  // a new run
  trainer.predict(std::make_shared<SelfPlanned>(), regression_data(8, 4));
  CHECK(timer.time_elapsed_s(RunningStage::predict) > 0);
}

TEST_CASE("Timer: the time of training continues in a resumed fit, whose time may be over") {
  TemporaryFolder folder;
  const Timed first = train({}, folder, 1);
  // Outside of the run, which would continue in its folder and give up what is old.
  const std::string checkpoint = folder / "kept.ckpt";
  std::filesystem::copy(*first.report.last_checkpoint, checkpoint, std::filesystem::copy_options::recursive);
  const Timed second = train({}, folder, 2, checkpoint);
  CHECK(second.timer->time_elapsed_s() >= 8 * 0.005);
  CHECK(second.timer->time_elapsed_s() > *second.timer->end_time_s() - *second.timer->start_time_s());
  const Timed over = train({.duration = seconds(4 * 0.005)}, folder, 2, checkpoint);
  CHECK(over.report.global_step == 4);  // no step more
  // A quiet run would not have looked at the time either.
  CallbackFilter third;
  third.from = Interval::parse("3ep");
  const Timed filtered = train({.duration = seconds(4 * 0.005)}, folder, 2, checkpoint, third);
  CHECK(filtered.report.global_step == 8);
  CHECK_THAT(over.report.stop_reason, ContainsSubstring("Timer: the training time of 0.02s is over"));
}

TEST_CASE("Timer: a run that fails leaves no stage open, and duration is a time") {
  struct Failing : SelfPlanned {
    StepOutput training_step(const Batch&, int64_t) override { throw Error("on purpose"); }
  };
  TemporaryFolder folder;
  auto timer = std::make_shared<Timer>(Timer::Options{});
  TrainerComponents components;
  components.add(timer);
  CHECK_THROWS_AS(Trainer(quiet(folder), components).fit(std::make_shared<Failing>(), regression_data(8, 4)), Error);
  REQUIRE(timer->end_time_s());
  const double elapsed = timer->time_elapsed_s();
  CHECK(timer->time_elapsed_s() == elapsed);
  CHECK_THAT(message_of<ConfigError>([] {
               Timer({.duration = Interval{3, Interval::Unit::epochs}});
             }),
             ContainsSubstring("duration must be a time such as 90min; got '3ep'"));
}

TEST_CASE("Timer ends a fit at the step after which the clock of the run says so") {
  FakeRunContext run;
  Timer timer({.duration = seconds(50)});
  timer.setup(run, TrainerFn::fit);
  run.seconds = 10;
  timer.on_fit_start(run);
  timer.on_train_start(run);
  run.seconds = 30;
  timer.on_validation_start(run);
  run.seconds = 45;
  timer.on_validation_end(run);
  CHECK(timer.time_elapsed_s(RunningStage::validate) == 15);
  CHECK(timer.time_elapsed_s() == 35);  // validation included
  run.seconds = 59;
  timer.on_train_batch_end(run, {}, {}, 0);
  CHECK(timer.time_remaining_s() == 1);
  CHECK_FALSE(run.stop_reason);
  run.seconds = 60;
  timer.on_train_batch_end(run, {}, {}, 1);
  CHECK(run.stop_reason == "Timer: the training time of 50s is over");
  run.seconds = 61;
  timer.on_train_batch_end(run, {}, {}, 2);  // min_steps are not reached
  CHECK(run.printed == std::vector<std::string>{"Timer: the training time of 50s is over after 50.0 s"});
  timer.on_train_end(run);
  run.seconds = 70;
  CHECK(timer.start_time_s() == 10);
  CHECK(timer.end_time_s() == 61);
  CHECK(timer.time_elapsed_s() == 51);
}

TEST_CASE("Timer: a resumed fit has what is left of the time") {
  FakeRunContext run;
  Timer first({.duration = seconds(50)}), second({.duration = seconds(50), .interval = ScheduleInterval::epoch});
  first.setup(run, TrainerFn::fit);
  first.on_train_start(run);
  run.seconds = 40;
  second.setup(run, TrainerFn::fit);
  second.load_state(first.state());
  run.seconds = 100;  // between the two
  second.on_train_start(run);
  CHECK(second.time_remaining_s() == 10);
  run.seconds = 120;
  second.on_train_batch_end(run, {}, {}, 0);
  CHECK_FALSE(run.stop_reason);
  second.on_train_epoch_end(run);
  CHECK(run.stop_reason);
}

TEST_CASE("Timer: a state that is loaded while training is under way does not count the time twice") {
  FakeRunContext run;
  Timer timer({.duration = seconds(100)});
  timer.setup(run, TrainerFn::fit);
  timer.load_state(StateTree::map({{"train_time_s", 5.0}}));
  run.seconds = 10;
  timer.on_train_start(run);
  run.seconds = 40;
  const StateTree state = timer.state();
  for (int i = 0; i < 3; ++i) timer.load_state(state);
  CHECK(timer.time_elapsed_s() == 35);
  run.seconds = 42;
  CHECK(timer.time_elapsed_s() == 37);
  timer.load_state(state);
  CHECK(timer.time_elapsed_s() == 35);
  CHECK(timer.start_time_s() == 10);
  timer.on_train_end(run);
  timer.load_state(timer.state());
  CHECK(timer.time_elapsed_s() == 35);
}

}  // namespace timer_test
