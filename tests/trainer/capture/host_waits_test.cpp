// The step waits for nothing: on a GPU, no call that waits for the device is made in steps that write nothing.
#include "trainer/boring.h"

#include <dlfcn.h>

#include <catch2/catch_test_macros.hpp>

#include "fulgur/callbacks/progress_bar.h"
#include "support/gpu.h"
#include "support/host_waits.h"

namespace host_waits_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

constexpr int64_t kSteps = 50, kFrom = 10, kTo = 45;

struct Scheduled : BoringModule {
  OptimizerPlan configure_optimizers() override {
    AdamW::Options options;
    options.lr = 0.01;
    return {std::make_shared<AdamW>(options),
            SchedulerConfig{.scheduler = std::make_shared<CosineAnnealingLR>(CosineAnnealingLR::Options{}),
                            .interval = ScheduleInterval::step}};
  }
};

struct Reading : Scheduled {
  StepOutput training_step(const Batch& b, int64_t i) override {
    StepOutput output = Scheduled::training_step(b, i);
    last = output.loss.item<double>();
    return output;
  }
  double last = 0;
};

struct Talking : Scheduled {
  StepOutput training_step(const Batch& b, int64_t i) override {
    for (const char* name : {"a", "b", "c", "d", "e"}) log(name, b[0].mean(), {.prog_bar = true});
    return Scheduled::training_step(b, i);
  }
};

// The steps between hooks are whole ones: everything after step kFrom and before the end of step kTo.
struct Counting : Callback {
  void on_train_batch_end(RunContext&, const StepOutput&, const Batch&, int64_t) override {
    ++steps;
    // To be at most so many steps ahead, a step may wait for the event of an earlier one; nothing else waits for events
    // here.
    const int64_t events = event_waits(), others = host_waits() - events;
    if (steps == kFrom) before = others, events_before = events;
    if (steps != kTo) return;
    waits = others - before;
    CHECK(events - events_before <= kTo - kFrom);
  }
  int64_t steps = 0, before = 0, events_before = 0, waits = -1;
};

template <class M>
int64_t waits_of(TrainerOptions options, int64_t log_every_n_steps = 1000, bool draws_bar = false) {
  options.accelerator = "cuda";
  options.log_every_n_steps = log_every_n_steps;
  const auto counting = std::make_shared<Counting>();
  TrainerComponents components;
  components.add(counting);
  if (draws_bar)
    components.add(std::make_shared<ProgressBar>(ProgressBar::Options{.refresh = {1e-9, Interval::Unit::seconds},
                                                                      .line_every = {1e-9, Interval::Unit::seconds}}));
  components.loggers = {std::make_shared<MemoryLogger>()};
  const FitReport report =
      Trainer(std::move(options), components).fit(std::make_shared<M>(), regression_data(kSteps * 4, 0));
  REQUIRE(report.global_step == kSteps);
  return counting->waits;
}

}  // namespace

TEST_CASE("calls of the CUDA runtime that wait reach the counter first") {
  const int64_t before = host_waits();
  for (const char* name : {"cudaStreamSynchronize", "cudaEventSynchronize"}) {
    void* const found = dlsym(RTLD_DEFAULT, name);
    REQUIRE(found != nullptr);
    reinterpret_cast<int (*)(void*)>(found)(nullptr);
  }
  auto* const whole_device = dlsym(RTLD_DEFAULT, "cudaDeviceSynchronize");
  REQUIRE(whole_device != nullptr);
  reinterpret_cast<int (*)()>(whole_device)();
  auto* const copy = dlsym(RTLD_DEFAULT, "cudaMemcpy");
  REQUIRE(copy != nullptr);
  reinterpret_cast<int (*)(void*, const void*, size_t, int)>(copy)(nullptr, nullptr, 0, 0);
  CHECK(host_waits() == before + 4);
}

TEST_CASE(
    "on a GPU, steps that write nothing wait for nothing: in each precision, with clipping, logged values and a "
    "schedule",
    "[gpu]") {
  require_gpus(1);
  TemporaryFolder folder;
  for (const char* precision : {"32-true", "bf16-mixed", "16-mixed"})
    for (const bool capture : {false, true}) {
      CAPTURE(precision, capture);
      TrainerOptions options = quiet(folder);
      options.precision = Spec<Precision>(precision);
      options.capture = capture;
      CHECK(waits_of<Scheduled>(options) == 0);
      options.gradient_clip_val = 0.5;
      options.log_grad_norm = true;
      CHECK(waits_of<Scheduled>(options) == 0);
    }
  // That the counter sees what waits: a module that reads its loss in each step.
  CHECK(waits_of<Reading>(quiet(folder)) >= kTo - kFrom);
}

TEST_CASE("on a GPU, steps that write rows and draw the progress bar wait for nothing", "[gpu]") {
  require_gpus(1);
  TemporaryFolder folder;
  for (const char* precision : {"32-true", "16-mixed"})
    for (const bool capture : {false, true}) {
      CAPTURE(precision, capture);
      TrainerOptions options = quiet(folder);
      options.precision = Spec<Precision>(precision);
      options.capture = capture;
      options.gradient_clip_val = 0.5;
      options.log_grad_norm = true;
      CHECK(waits_of<Talking>(options, 1, /*draws_bar=*/true) == 0);
      CHECK(waits_of<Talking>(options, 7, /*draws_bar=*/true) == 0);
    }
}

}  // namespace host_waits_test
