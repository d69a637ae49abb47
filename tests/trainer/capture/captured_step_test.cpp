// capture: the host's part of captured steps, with a stand-in for the device's recorder.
#include <ATen/ops/argmax.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/callbacks/batch_size_scheduler.h"
#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/metrics/ranking.h"
#include "fulgur/optim/cyclic_schedules.h"
#include "fulgur/optim/lbfgs.h"
#include "trainer/capture/captured_fit.h"

namespace captured_step_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE(
    "captured steps give the run of uncaptured ones: weights, logged values, rates and dropout; odd batches are "
    "stepped as they are") {
  TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.gradient_clip_val = 0.5;
  options.log_grad_norm = true;
  const auto plain = fit(options, false), captured = fit(options, true);
  CHECK(same_weights(plain.weights, captured.weights));
  check_same_logs(plain, captured, "train_loss");
  check_same_logs(plain, captured, "grad_norm");
  CHECK(plain.counts.records == 0);
  // 11 batches an epoch, the last of 2 samples; 3 steps are made first.
  CHECK(captured.counts.records == 1);
  CHECK(captured.counts.replays == 33 - 3 - 3);
  CHECK(captured.report.global_step == 33);
  CHECK(captured.report.captured_batches == 27);
  CHECK_FALSE(captured.report.not_captured);
  CHECK_THAT(captured.told, ContainsSubstring("capture: 27 of 33 batches were captured"));
  CHECK(plain.report.captured_batches == 0);
  CHECK_FALSE(plain.report.not_captured);
}

TEST_CASE("a report says why batches were not captured") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  const auto batches_and_reason = [](const FitReport& report) {
    return std::pair(report.captured_batches, report.not_captured.value_or(""));
  };
  const auto logged = batches_and_reason(fit<BatchIndexLogged>(options, true).report);
  CHECK(logged.first == 0);
  CHECK_THAT(logged.second, ContainsSubstring("'batch' in log() is a host number that changes"));
  options.max_steps = 2;
  const auto few = fit(options, true);
  CHECK(batches_and_reason(few.report).first == 0);
  CHECK_THAT(batches_and_reason(few.report).second, ContainsSubstring("the fit ended first"));
  CHECK_THAT(few.told, ContainsSubstring("capture: 0 of 2 batches were captured: the fit ended first"));
  // Windows of three batches, in epochs of two.
  options.max_steps = 12;
  options.max_epochs = 40;
  options.limit_train_batches = 2;
  options.accumulate_grad_batches = 3;
  CHECK_THAT(batches_and_reason(fit(options, true).report).second,
             ContainsSubstring("no window of accumulate_grad_batches batches"));
}

TEST_CASE("a captured run resumes from its checkpoint to the same weights") {
  TemporaryFolder whole_folder, folder;
  const auto whole = fit(three_epochs(whole_folder), true);
  TrainerOptions options = three_epochs(folder);
  options.max_steps = 14;
  fit(options, true);
  options.max_steps = -1;
  const auto rest = fit(options, true, {}, "last");
  CHECK(same_weights(whole.weights, rest.weights));
  CHECK(rest.counts.replays > 0);
}

namespace {

struct Freezing : Captured {
  void on_train_epoch_start() override { first->weight.set_requires_grad(run().progress().epoch != 1); }
};

struct Reading : Captured {
  StepOutput training_step(const Batch& b, int64_t i) override {
    // An operation that fails while it is recorded.
    if (run().progress().global_step == 3 && !std::exchange(refused, true)) b[0].item<float>();
    return Captured::training_step(b, i);
  }
  bool refused = false;
};

struct NowAndThen : Captured {
  StepOutput training_step(const Batch& b, int64_t i) override {
    if (i % 2 == 1) log("once", 1.0);
    return Captured::training_step(b, i);
  }
};

struct Constant : Captured {
  StepOutput training_step(const Batch& b, int64_t i) override {
    log("alpha", 0.5, {.on_step = true, .on_epoch = true});
    log("count", 2, {.reduce_fx = Reduce::sum});
    return Captured::training_step(b, i);
  }
};

struct Rate : Captured {
  StepOutput training_step(const Batch& b, int64_t i) override {
    log("rate", run().optimizers().front()->groups().front().lr);
    return Captured::training_step(b, i);
  }
};

// One batch more to a window in each epoch.
struct Widening : Callback {
  void on_train_epoch_start(RunContext& run) override { run.set_accumulation(run.progress().epoch + 1); }
};

struct Hooked : Captured {
  void on_after_backward() override {}
};

struct ByHand : SelfPlanned {
  bool automatic_optimization() const override { return false; }
};

struct Cyclic : BoringModule {
  OptimizerPlan configure_optimizers() override {
    return {std::make_shared<SGD>(SGD::Options{.lr = 0.01, .momentum = 0.9}),
            SchedulerConfig{.scheduler = std::make_shared<OneCycleLR>(OneCycleLR::Options{.max_lr = 0.1}),
                            .interval = ScheduleInterval::step}};
  }
};

// Its update knows the host's rate only.
struct ByHostRate : FusedOptimizer {
  double default_lr() const override { return 0.1; }
  std::string name() const override { return "ByHostRate"; }
  std::vector<std::string> state_names(const Tensor&) const override { return {}; }
  void update(Bucket& bucket, const std::optional<Tensor>&) override {
    for (size_t i = 0; i < bucket.params.size(); ++i) bucket.params[i].sub_(bucket.grads[i], bucket.group->lr);
  }
};

struct HostRates : BoringModule {
  OptimizerPlan configure_optimizers() override { return std::make_shared<ByHostRate>(); }
};

struct Closing : BoringModule {
  OptimizerPlan configure_optimizers() override { return std::make_shared<LBFGS>(LBFGS::Options{.lr = 0.1}); }
};

struct Watching : Callback {
  std::string state_key() const override { return "Watching"; }
  void on_before_zero_grad(RunContext&, Optimizer&) override {}
};

}  // namespace

TEST_CASE("a layer that is frozen between epochs makes the step be captured again") {
  TemporaryFolder folder;
  const auto plain = fit<Freezing>(three_epochs(folder), false), captured = fit<Freezing>(three_epochs(folder), true);
  CHECK(same_weights(plain.weights, captured.weights));
  CHECK(captured.counts.records == 3);
}

TEST_CASE("an operation that cannot be captured is named once, and the run continues as one without") {
  TemporaryFolder folder;
  const auto captured = fit<Reading>(three_epochs(folder), true);
  CHECK_THAT(captured.told, ContainsSubstring("at aten::item: "));
  CHECK(captured.counts.replays == 0);
  CHECK(same_weights(fit(three_epochs(folder), false).weights, captured.weights));
}

TEST_CASE("a host number that stays the same is logged by captured steps too, as it is") {
  TemporaryFolder folder;
  const auto plain = fit<Constant>(three_epochs(folder), false), captured = fit<Constant>(three_epochs(folder), true);
  CHECK(captured.counts.replays == 27);
  CHECK_THAT(captured.told,
             ContainsSubstring("host numbers are logged with their current values: 'alpha' 0.5, 'count' 2.0"));
  check_same_logs(plain, captured, "alpha_step");
  check_same_logs(plain, captured, "alpha_epoch");
  check_same_logs(plain, captured, "count");
}

TEST_CASE("a step that logs a host number that changes is not captured: the metric is named, and what to do") {
  TemporaryFolder folder;
  const auto refused = [&]<class M>(std::type_identity<M>, const char* metric) {
    const auto captured = fit<M>(three_epochs(folder), true);
    CHECK(captured.counts.replays == 0);
    CHECK_THAT(captured.told, ContainsSubstring("on_train_batch_end"));
    const auto plain = fit<M>(three_epochs(folder), false);
    check_same_logs(plain, captured, metric);
    CHECK(same_weights(plain.weights, captured.weights));
    return captured.told;
  };
  CHECK_THAT(refused(std::type_identity<BatchIndexLogged>{}, "batch"),
             ContainsSubstring("'batch' in log() is a host number that changes: it was 0.0, and then 1.0"));
  CHECK_THAT(refused(std::type_identity<NowAndThen>{}, "once"),
             ContainsSubstring("'once' in log() is a host number that is logged in some steps only"));
  // The same in all steps before the recording, and in it.
  CHECK_THAT(refused(std::type_identity<Rate>{}, "rate"),
             ContainsSubstring("'rate' in log() is a host number that equals a learning rate"));
}

TEST_CASE("a metric object that keeps all samples is named, and its steps are not captured") {
  struct Ranked : Captured {
    metrics::Auroc auroc{{.num_classes = 2}};
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      auroc.update(batch[0].slice(1, 0, 2), batch[1].argmax(1));
      log("auroc", auroc);
      return Captured::training_step(batch, batch_idx);
    }
  };
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto plain = fit<Ranked>(options, false), captured = fit<Ranked>(options, true);
  CHECK(captured.report.captured_batches == 0);
  CHECK_THAT(captured.report.not_captured.value_or(""), ContainsSubstring("'auroc' keeps all samples"));
  CHECK(captured.logger->values("auroc").size() == 3);
  CHECK(captured.logger->values("auroc") == plain.logger->values("auroc"));
}

TEST_CASE("a step that logs media is not captured; what on_train_batch_end logs is the same in captured steps") {
  struct InStep : Captured {
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      if (batch_idx == 0) log_media(TextRecord{"note", "a batch"});
      return Captured::training_step(batch, batch_idx);
    }
  };
  struct AtEnd : Captured {
    void on_train_batch_end(const StepOutput&, const Batch&, int64_t batch_idx) override {
      log_media(TextRecord{"note", std::to_string(batch_idx)});
    }
  };
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto same_media = [](const auto& plain, const auto& captured) {
    REQUIRE(plain.logger->media.size() == captured.logger->media.size());
    for (size_t i = 0; i < plain.logger->media.size(); ++i) {
      CHECK(plain.logger->media[i].step == captured.logger->media[i].step);
      CHECK(std::get<TextRecord>(plain.logger->media[i].record).text ==
            std::get<TextRecord>(captured.logger->media[i].record).text);
    }
    return captured.logger->media.size();
  };
  const auto refused = fit<InStep>(options, true);
  CHECK(refused.report.captured_batches == 0);
  CHECK_THAT(
      refused.report.not_captured.value_or(""),
      ContainsSubstring("the step prints, or logs media or artifacts") && ContainsSubstring("on_train_batch_end"));
  CHECK(same_media(fit<InStep>(options, false), refused) == 3);
  const auto captured = fit<AtEnd>(options, true);
  CHECK(captured.report.captured_batches > 0);
  CHECK(same_media(fit<AtEnd>(options, false), captured) == 33);
}

TEST_CASE("with accumulation, captured steps give the run of uncaptured ones") {
  TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.gradient_clip_val = 0.5;
  options.log_grad_norm = true;
  // Batches an epoch: 11, the last an odd one. Recordings: the batches of one window by their places in it.
  const auto check = [&](int64_t every, int64_t records, int64_t replays) {
    CAPTURE(every);
    options.accumulate_grad_batches = every;
    const auto plain = fit(options, false), captured = fit(options, true);
    // Not what is logged: the stand-in logs while it records, too, and a window has several recordings.
    CHECK(same_weights(plain.weights, captured.weights));
    CHECK(captured.report.global_step == plain.report.global_step);
    CHECK(captured.counts.records == records);
    CHECK(captured.counts.replays == replays);
  };
  // Windows of the whole length are captured, three batches and one window after the start.
  check(2, 2, 30 - 4);
  check(3, 3, 27 - 3);
  check(4, 3, 24 - 4);
}

TEST_CASE("with accumulation, captured steps follow a window's length that changes") {
  TemporaryFolder folder;
  const auto run = [&](bool captures) {
    return fit(three_epochs(folder), captures,
               [](TrainerComponents& components) { components.add(std::make_shared<Widening>()); });
  };
  const auto plain = run(false), captured = run(true);
  CHECK(same_weights(plain.weights, captured.weights));
  CHECK(plain.report.global_step == captured.report.global_step);
  // Per epoch: windows of 1, 2 and 3.
  CHECK(captured.counts.records == 1 + 2 + 3);
}

TEST_CASE("captured steps follow batches whose size changes for good") {
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto run = [&](bool captures) {
    return fit(options, captures, [](TrainerComponents& components) {
      BatchSizeScheduler::Options smaller;
      smaller.schedule = {{.at = *Interval::parse("1ep"), .batch_size = 2}};
      components.add(std::make_shared<BatchSizeScheduler>(smaller));
    });
  };
  const auto plain = run(false), captured = run(true);
  CHECK(same_weights(plain.weights, captured.weights));
  check_same_logs(plain, captured, "train_loss");
  CHECK(captured.report.global_step == 11 + 21 + 21);
  CHECK(captured.counts.records == 2);
  // The last batch of the first epoch has two samples, and so do those that follow; the tenth is the first of three
  // steps before the recording.
  CHECK(captured.counts.replays == (11 - 3 - 1) + (21 - 8 - 3) + 21);
}

TEST_CASE("captured steps follow a schedule that changes the momentum") {
  TemporaryFolder folder;
  const auto plain = fit<Cyclic>(three_epochs(folder), false), captured = fit<Cyclic>(three_epochs(folder), true);
  CHECK(captured.counts.replays == 27);
  for (const auto& [name, value] : plain.weights) {
    CAPTURE(name);
    CHECK(at::allclose(value, captured.weights.at(name), 1e-6, 1e-6));
  }
}

TEST_CASE("steps that cannot be captured: the reason is reported, and nothing else changes") {
  TemporaryFolder folder;
  const auto told = [&]<class M>(std::type_identity<M>, const std::function<void(TrainerOptions&)>& change = {},
                                 const std::function<void(TrainerComponents&)>& components = {}) {
    TrainerOptions options = quiet(folder);
    if (change) change(options);
    const auto captured = fit<M>(options, true, components);
    CAPTURE(captured.told);
    CHECK(captured.counts.records == 0);
    CHECK(same_weights(fit<M>(options, false, components).weights, captured.weights));
    return captured.told;
  };
  using Is = std::type_identity<Captured>;
  CHECK_THAT(told(std::type_identity<Hooked>{}), ContainsSubstring("the module overrides on_after_backward"));
  CHECK_THAT(told(std::type_identity<ByHand>{}), ContainsSubstring("automatic_optimization() is false"));
  CHECK_THAT(told(std::type_identity<HostRates>{}),
             ContainsSubstring("ByHostRate reads its learning rate from the host"));
  CHECK_THAT(told(std::type_identity<Closing>{}), ContainsSubstring("LBFGS evaluates its loss several times"));
  CHECK_THAT(told(Is{}, {}, [](TrainerComponents& p) { p.add(std::make_shared<Watching>()); }),
             ContainsSubstring("Watching overrides on_before_zero_grad"));
  CHECK_THAT(told(Is{}, [](TrainerOptions& o) { o.debug = true; }), ContainsSubstring("debug is true"));
  CHECK_THAT(told(Is{}, [](TrainerOptions& o) { o.detect_anomaly = true; }),
             ContainsSubstring("detect_anomaly is true"));
  CHECK_THAT(told(Is{}, [](TrainerOptions& o) { o.check_every = 5; }), ContainsSubstring("check_every is not 0"));
}

}  // namespace captured_step_test
