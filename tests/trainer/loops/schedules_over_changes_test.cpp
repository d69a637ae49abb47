// Schedules of a run that resumes with another number of samples in a step: the rate follows the samples that are done.
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <iterator>
#include <limits>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/core/text/log.h"
#include "fulgur/optim/composed_schedules.h"
#include "fulgur/optim/cyclic_schedules.h"

namespace schedules_over_changes_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;

namespace {

using MakeSchedule = std::function<std::shared_ptr<LrScheduler>()>;

struct Scheduled : BoringModule {
  MakeSchedule make;
  ScheduleInterval interval = ScheduleInterval::step;
  OptimizerPlan configure_optimizers() override {
    return {std::make_shared<SGD>(SGD::Options{.lr = 0.1, .momentum = 0.9}),
            SchedulerConfig{.scheduler = make(), .interval = interval}};
  }
};

// The rate that each sample was trained with.
struct Rates : Callback {
  std::map<int64_t, double> by_samples;
  void on_train_batch_start(RunContext& run, const Batch&, int64_t) override {
    by_samples[run.progress().samples_seen] = run.optimizers().front()->groups().front().lr;
  }
};

struct Part {
  int64_t accumulation = 1;
  int64_t steps = -1;  ///< ends after these, to be resumed
  int64_t max_epochs = 4;
  int64_t batches = 16;  ///< of an epoch
};

std::map<int64_t, double> rates(const MakeSchedule& make, const std::vector<Part>& parts,
                                ScheduleInterval interval = ScheduleInterval::step, std::string* told = nullptr,
                                const std::function<void(TrainerOptions&)>& change = {}) {
  const TemporaryFolder folder;
  const auto seen = std::make_shared<Rates>();
  std::string lines;
  for (const Part& part : parts) {
    struct Stopping : Callback {
      int64_t at;
      explicit Stopping(int64_t steps) : at(steps) {}
      void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
        // The checkpoint of the step before is there, that of this one not yet.
        if (at >= 0 && run.progress().global_step == at + 1) throw std::runtime_error("the part ends");
      }
    };
    TrainerOptions options = quiet(folder);
    options.max_epochs = part.max_epochs;
    options.accumulate_grad_batches = part.accumulation;
    options.limit_train_batches = BatchLimit(part.batches);
    if (change) change(options);
    ModelCheckpoint::Options saving;
    saving.every_n_train_steps = part.steps > 0 ? part.steps : std::numeric_limits<int64_t>::max();
    TrainerComponents components;
    components.seed = 1;
    components.callbacks = {seen, std::make_shared<ModelCheckpoint>(saving), std::make_shared<Stopping>(part.steps)};
    const auto module = std::make_shared<Scheduled>();
    module->make = make;
    module->interval = interval;
    log::reset_warnings();
    log::set_sink(
        [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; },
        &lines);
    try {
      Trainer(options, components).fit(module, regression_data(64, 0), "auto");
    } catch (const std::runtime_error&) {
    }
    log::set_sink({}, nullptr);
  }
  if (told) *told = lines;
  return seen->by_samples;
}

struct Case {
  const char* name;
  MakeSchedule make;
};

template <class S>
MakeSchedule made(typename S::Options options) {
  return [options] { return std::make_shared<S>(options); };
}

std::vector<Case> by_samples() {
  CosineAnnealingLR::Options cosine;
  OneCycleLR::Options cycle;
  cycle.max_lr = 0.2;
  StepLR::Options steps;
  steps.step_size = Length(*Interval::parse("64sa"));
  steps.gamma = 0.5;
  StepLR::Options epochs;
  epochs.step_size = Length(*Interval::parse("1ep"));
  epochs.gamma = 0.5;
  WarmupLR::Options warmup;
  warmup.length = Length(*Interval::parse("0.25dur"));
  return {{"CosineAnnealingLR", made<CosineAnnealingLR>(cosine)},
          {"OneCycleLR", made<OneCycleLR>(cycle)},
          {"StepLR in samples", made<StepLR>(steps)},
          {"StepLR in epochs", made<StepLR>(epochs)},
          {"WarmupLR", [=] { return std::make_shared<WarmupLR>(warmup, std::make_shared<CosineAnnealingLR>(cosine)); }},
          {"SequentialLR", [=] {
             return std::make_shared<SequentialLR>(
                 std::vector<std::shared_ptr<LrScheduler>>{std::make_shared<StepLR>(steps),
                                                           std::make_shared<CosineAnnealingLR>(cosine)},
                 std::vector<Length>{Length(*Interval::parse("1ep"))});
           }}};
}

}  // namespace

TEST_CASE("a schedule of a resumed run with other batches has the rates of the samples that are done") {
  for (const Case& schedule : by_samples()) {
    // 64 samples in 16 batches of an epoch.
    const auto whole = rates(schedule.make, {{}});
    for (const std::vector<Part>& parts :
         {std::vector<Part>{{.accumulation = 1, .steps = 20}, {.accumulation = 2}},
          std::vector<Part>{{.accumulation = 1, .steps = 12}, {.accumulation = 4, .steps = 17}, {.accumulation = 1}}}) {
      std::string told;
      const auto changed = rates(schedule.make, parts, ScheduleInterval::step, &told);
      CAPTURE(schedule.name, parts.size(), told);
      CHECK_THAT(told, ContainsSubstring("each step counts as"));
      int64_t compared = 0;
      for (const auto& [samples, rate] : changed) {
        // Inside a window the rate is that of its step.
        const int64_t accumulation = parts[1].accumulation;
        if (samples % (4 * accumulation) != 0) continue;
        CAPTURE(samples);
        REQUIRE(whole.contains(samples));
        CHECK_THAT(rate, WithinRel(whole.at(samples), 1e-9));
        ++compared;
      }
      CHECK(compared > 10);
    }
  }
}

TEST_CASE("a schedule of a resumed run with smaller steps goes as slowly as its samples") {
  for (const Case& schedule : by_samples()) {
    CAPTURE(schedule.name);
    const auto whole = rates(schedule.make, {{.accumulation = 2}});
    const auto changed = rates(schedule.make, {{.accumulation = 2, .steps = 12}, {.accumulation = 1}});
    for (const auto& [samples, rate] : changed) {
      CAPTURE(samples);
      CHECK_THAT(rate, WithinRel(whole.at(samples - samples % 8), 1e-9));
    }
  }
}

TEST_CASE("a schedule of a resumed run with other epochs ends with the last of them") {
  // 4 epochs. The second part begins at an epoch's start, inside one, or where its epochs have ended before.
  for (const Case& schedule : by_samples()) {
    if (schedule.name == std::string("StepLR in samples") || schedule.name == std::string("SequentialLR")) continue;
    const auto whole = rates(schedule.make, {{}});
    for (const std::vector<Part>& parts :
         {std::vector<Part>{{.steps = 16}, {.batches = 8}}, std::vector<Part>{{.steps = 8, .batches = 8}, {}},
          std::vector<Part>{{.steps = 5, .batches = 8}, {}}, std::vector<Part>{{.steps = 21}, {.batches = 8}},
          std::vector<Part>{{.steps = 28}, {.batches = 8}},
          std::vector<Part>{{.steps = 5, .batches = 8}, {.steps = 12}, {.steps = 40}, {}},
          std::vector<Part>{{.steps = 16}, {.accumulation = 2, .batches = 8}}}) {
      std::string told;
      const auto changed = rates(schedule.make, parts, ScheduleInterval::step, &told);
      CAPTURE(schedule.name, parts.size(), parts[0].steps, parts[0].batches, parts[1].accumulation, told);
      CHECK_THAT(told, ContainsSubstring("each step counts as"));
      const double before_last = std::next(whole.rbegin())->second, last = whole.rbegin()->second;
      CHECK(changed.rbegin()->second >= last * (1 - 1e-9));
      CHECK(changed.rbegin()->second <= std::max(before_last, std::next(whole.rbegin(), 3)->second) * (1 + 1e-9));
      if (schedule.name == std::string("CosineAnnealingLR")) {
        double highest = 1;
        for (const auto& [samples, rate] : changed) {
          CAPTURE(samples);
          CHECK(rate <= highest + 1e-12);  // it never rises
          highest = rate;
        }
      }
    }
  }
}

TEST_CASE("a schedule of epochs ends with the last of them, though the last window of an epoch is short") {
  // 13 batches in an epoch: windows of 12 and 1, of 5, 5 and 3, or of one batch each.
  for (const Case& schedule : by_samples()) {
    if (schedule.name == std::string("StepLR in samples") || schedule.name == std::string("SequentialLR")) continue;
    for (const auto& [first, second] : std::vector<std::pair<Part, Part>>{
             {{.steps = 13, .batches = 13}, {.accumulation = 12, .batches = 13}},
             {{.steps = 13, .batches = 13}, {.accumulation = 5, .batches = 13}},
             {{.accumulation = 5, .steps = 3, .batches = 13}, {.accumulation = 1, .batches = 13}}}) {
      const auto whole = rates(schedule.make, {{.accumulation = first.accumulation, .batches = 13}});
      const auto changed = rates(schedule.make, {first, second});
      CAPTURE(schedule.name, first.accumulation, second.accumulation);
      for (int64_t epoch = 1; epoch < 4; ++epoch) {
        CAPTURE(epoch);
        CHECK_THAT(changed.at(epoch * 52), WithinRel(whole.at(epoch * 52), 1e-9));
      }
    }
  }
  // From within an epoch, the steps left are shared evenly.
  CosineAnnealingLR::Options cosine;
  for (const int64_t steps : {20, 25, 32})
    for (const int64_t accumulation : {3, 5, 12}) {
      const auto changed = rates(made<CosineAnnealingLR>(cosine),
                                 {{.steps = steps, .batches = 13}, {.accumulation = accumulation, .batches = 13}});
      CAPTURE(steps, accumulation);
      const auto windows = [&](int64_t batches) { return (batches + accumulation - 1) / accumulation; };
      const int64_t left = windows(13 - steps % 13) + (3 - steps / 13) * windows(13);
      const double pace = static_cast<double>(52 - steps) / static_cast<double>(left);
      const double position = std::floor(52 - pace + 1e-6);
      double before = 1;
      for (const auto& [samples, rate] : changed) {
        CAPTURE(samples);
        CHECK(rate <= before + 1e-12);  // it never rises
        before = rate;
      }
      CHECK_THAT(before, WithinRel(0.05 * (1 + std::cos(std::acos(-1.0) * position / 52)), 1e-9));
    }
}

TEST_CASE("a schedule of epochs in steps changes at the epochs of a resumed run, whatever they have") {
  StepLR::Options options;
  options.step_size = Length(*Interval::parse("1ep"));
  options.gamma = 0.5;
  const auto changed = rates(made<StepLR>(options), {{.steps = 16}, {.batches = 8}});
  // 16 batches of 4 samples, then three times 8.
  for (const auto& [samples, rate] : changed) {
    CAPTURE(samples);
    const int64_t epoch = samples < 64 ? 0 : 1 + (samples - 64) / 32;
    CHECK_THAT(rate, WithinRel(0.1 * std::pow(0.5, epoch), 1e-9));
  }
}

TEST_CASE("a schedule in numbers of steps counts steps, whatever a step has") {
  for (const Length& step_size : {Length(10), Length(*Interval::parse("10st"))}) {
    StepLR::Options options;
    options.step_size = step_size;
    options.gamma = 0.5;
    std::string told;
    const auto changed = rates(made<StepLR>(options), {{.accumulation = 1, .steps = 20}, {.accumulation = 2}},
                               ScheduleInterval::step, &told);
    CHECK(told.find("each step counts as") == std::string::npos);
    // 20 steps of 4 samples, then steps of 8.
    CHECK_THAT(changed.at(80), WithinRel(0.1 * 0.25, 1e-9));
    CHECK_THAT(changed.at(80 + 8 * 9), WithinRel(0.1 * 0.25, 1e-9));
    CHECK_THAT(changed.at(80 + 8 * 10), WithinRel(0.1 * 0.125, 1e-9));
  }
}

TEST_CASE("a schedule of epochs does not change with the batches") {
  CosineAnnealingLR::Options options;
  const auto make = made<CosineAnnealingLR>(options);
  const auto whole = rates(make, {{}}, ScheduleInterval::epoch);
  for (const auto& [samples, rate] :
       rates(make, {{.accumulation = 1, .steps = 20}, {.accumulation = 2}}, ScheduleInterval::epoch)) {
    CAPTURE(samples);
    CHECK_THAT(rate, WithinRel(whole.at(samples), 1e-9));
  }
}

TEST_CASE("with a higher limit, auto follows the new length of the run; both rates are printed") {
  CosineAnnealingLR::Options options;
  const auto make = made<CosineAnnealingLR>(options);
  const auto whole = rates(make, {{.max_epochs = 4}});
  std::string told;
  const auto longer = rates(make, {{.steps = 20, .max_epochs = 2}, {.max_epochs = 4}}, ScheduleInterval::step, &told);
  // 20 of 32 steps are done, then 20 of 64.
  for (const auto& [samples, rate] : longer) {
    CAPTURE(samples);
    if (samples >= 4 * 20) CHECK_THAT(rate, WithinRel(whole.at(samples), 1e-9));
  }
  CHECK_THAT(told, ContainsSubstring("schedule: the learning rate of SGD continues at ") &&
                       ContainsSubstring("because the run now has 64 steps instead of 32 steps"));
  rates(make, {{.steps = 20}, {}}, ScheduleInterval::step, &told);
  CHECK_THAT(told, !ContainsSubstring("continues at "));
  // A length that does not depend on the run stays.
  options.t_max = {Length(100)};
  rates(made<CosineAnnealingLR>(options), {{.steps = 20, .max_epochs = 2}, {.max_epochs = 4}}, ScheduleInterval::step,
        &told);
  CHECK_THAT(told, !ContainsSubstring("continues at "));
}

TEST_CASE("a warm-up that does not end within the run is a warning") {
  const auto warmup = [](const Length& length) -> MakeSchedule {
    return [=] { return std::make_shared<WarmupLR>(WarmupLR::Options{.length = length}); };
  };
  std::string told;
  rates(warmup(500), {{}}, ScheduleInterval::epoch, &told);
  CHECK_THAT(told, ContainsSubstring("WarmupLR.length is 500 epochs, but the run has 4 epochs") &&
                       ContainsSubstring("set lr_scheduler_interval: step") &&
                       ContainsSubstring("[lr_scheduler.longer_than_run]"));
  rates(warmup(64), {{}}, ScheduleInterval::step, &told);
  CHECK_THAT(told, ContainsSubstring("WarmupLR.length is 64 steps, but the run has 64 steps"));
  rates(warmup(63), {{}}, ScheduleInterval::step, &told);
  CHECK_THAT(told, !ContainsSubstring("longer_than_run"));
  rates(warmup(500), {{}}, ScheduleInterval::epoch, &told,
        [](TrainerOptions& options) { options.fast_dev_run.batches = 1; });
  CHECK_THAT(told, !ContainsSubstring("longer_than_run"));
  const auto sequence = [](int64_t milestone) -> MakeSchedule {
    return [=] {
      std::vector<std::shared_ptr<LrScheduler>> parts{
          std::make_shared<LinearLR>(LinearLR::Options{}),
          std::make_shared<CosineAnnealingLR>(CosineAnnealingLR::Options{})};
      return std::make_shared<SequentialLR>(std::move(parts), std::vector<Length>{milestone});
    };
  };
  rates(sequence(5), {{}}, ScheduleInterval::epoch, &told);
  CHECK_THAT(told, ContainsSubstring("the last of SequentialLR.milestones is 5 epochs, but the run has 4 epochs: the "
                                     "last schedule never begins"));
  rates(sequence(3), {{}}, ScheduleInterval::epoch, &told);
  CHECK_THAT(told, !ContainsSubstring("longer_than_run"));
}

TEST_CASE("a limit of steps ends a schedule that resumes with other batches") {
  CosineAnnealingLR::Options options;
  const auto limited = [](TrainerOptions& trainer) { trainer.max_steps = 36; };
  const auto changed = rates(made<CosineAnnealingLR>(options), {{.accumulation = 1, .steps = 20}, {.accumulation = 2}},
                             ScheduleInterval::step, nullptr, limited);
  double last = 1;
  for (const auto& [samples, rate] : changed) {
    CAPTURE(samples);
    CHECK(rate <= last + 1e-12);  // it never rises
    last = rate;
  }
  CHECK(last < 0.01);
}

TEST_CASE("scale_lr follows the batch of a resumed run") {
  ConstantLR::Options options;
  options.factor = 1;
  std::string told;
  const auto scaled = [](TrainerOptions& trainer) {
    trainer.scale_lr = ScaleLr::linear;
    trainer.base_batch_size = 4;
  };
  const auto changed = rates(made<ConstantLR>(options), {{.accumulation = 1, .steps = 20}, {.accumulation = 2}},
                             ScheduleInterval::step, &told, scaled);
  CHECK_THAT(changed.at(76), WithinRel(0.1, 1e-9));
  CHECK_THAT(changed.at(88), WithinRel(0.2, 1e-9));
  CHECK_THAT(told, ContainsSubstring("the rates of the checkpoint are multiplied by 2"));
}

TEST_CASE("parts of the run are parts of it whatever number of batches makes a step") {
  struct Widening : Callback {
    std::vector<int64_t> validated_at;
    void on_train_epoch_start(RunContext& run) override { run.set_accumulation(run.progress().epoch < 2 ? 1 : 4); }
    void on_validation_end(RunContext& run) override { validated_at.push_back(run.progress().batches_total.completed); }
  };
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 4;
  options.val_check_interval = *Interval::parse("0.125dur");
  options.check_val_every_n_epoch = std::nullopt;
  const auto widening = std::make_shared<Widening>();
  TrainerComponents components;
  components.add(widening);
  Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data(64, 8));
  CHECK(widening->validated_at == std::vector<int64_t>{8, 16, 24, 32, 40, 48, 56, 64});
}

}  // namespace schedules_over_changes_test
