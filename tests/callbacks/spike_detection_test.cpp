// What SpikeDetection does to a run: skipped steps and rollbacks equal those of on_nonfinite, bit for bit.
#include "fulgur/callbacks/spike_detection.h"

#include "callbacks/scored.h"
#include "support/fake_run_context.h"
#include "support/thread_collectives.h"
#include "trainer/checkpointing/interrupted.h"

#include <ATen/ops/full.h>
#include <torch/nn/modules/batchnorm.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <thread>

#include "fulgur/core/text/text.h"
#include "fulgur/optim/lbfgs.h"
#include "fulgur/strategies/mixed_precision.h"
#include "support/expect_error.h"

namespace spike_detection_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// The losses of the net differ by less.
constexpr double kRtol = 20;

/// The loss is larger in some batches of the run, counted from 1, but its gradients are not. The running statistics
/// move in each forward.
struct Spiky : SelfPlanned {
  torch::nn::BatchNorm1d norm{nullptr};
  std::set<int64_t> at;
  double factor = 1000;
  std::vector<std::map<std::string, Tensor>> after;  // each batch
  std::vector<double> losses;
  Spiky() { norm = register_module("norm", torch::nn::BatchNorm1d(4)); }
  StepOutput training_step(const Batch& b, int64_t) override {
    const bool now = at.contains(run().progress().batches_total.started);
    Tensor loss = at::mse_loss(forward(norm(b[0])), b[1]);
    if (now) loss = loss + loss.detach() * factor;
    losses.push_back(loss.item<double>());
    return loss;
  }
  Outputs validation_step(const Batch&, int64_t, int64_t) override { return {}; }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override { after.push_back(weights(*this)); }
};

struct Run {
  std::shared_ptr<Spiky> module;
  std::shared_ptr<SpikeDetection> detection;
  std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
  FitReport report;
  std::vector<std::string> lines;
  std::string error;
  size_t count(std::string_view part) const {
    return static_cast<size_t>(std::count_if(
        lines.begin(), lines.end(), [&](const std::string& line) { return line.find(part) != std::string::npos; }));
  }
};

struct Setting {
  std::set<int64_t> at;
  double factor = 1000;
  std::optional<SpikeDetection::Options> options = {};
  OnNonFinite nonfinite = OnNonFinite::raise;
  int64_t accumulate = 1;
  int64_t save_every = 2;
  std::shared_ptr<Precision> precision = nullptr;
  CallbackFilter filter = {};
};

// Two epochs of 10 batches.
Run fit(const Setting& setting) {
  TemporaryFolder folder;
  Run run;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.limit_val_batches = 0;
  options.on_nonfinite = setting.nonfinite;
  options.accumulate_grad_batches = setting.accumulate;
  TrainerComponents components;
  components.precision = setting.precision;
  components.loggers = {run.logger};
  ModelCheckpoint::Options saving;
  saving.every_n_train_steps = setting.save_every;
  components.add(std::make_shared<ModelCheckpoint>(saving));
  if (setting.options) {
    run.detection = std::make_shared<SpikeDetection>(*setting.options);
    run.detection->set_common_options(setting.filter);
    components.add(run.detection);
  }
  at::manual_seed(3);
  run.module = std::make_shared<Spiky>();
  run.module->at = setting.at;
  run.module->factor = setting.factor;
  LogLines lines;
  try {
    run.report = Trainer(options, components).fit(run.module, regression_data(40, 0, 4, false), {});
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::other);
    run.error = error.what();
  }
  run.lines = lines.lines;
  return run;
}

SpikeDetection::Options with(SpikeAction action) { return {.action = action, .rtol = kRtol}; }

}  // namespace

TEST_CASE("SpikeDetection warn: the spike is reported once and counted, and training is that of a run without it") {
  const Run plain = fit({.at = {6, 15}}), run = fit({.at = {6, 15}, .options = with(SpikeAction::warn)});
  CHECK(same_weights(weights(*plain.module), weights(*run.module)));
  CHECK(run.detection->spikes() == 2);
  CHECK(run.count("SpikeDetection: the loss is ") == 1);
  CHECK(run.count("in step 6; the mean of the last 5 steps is ") == 1);
  CHECK(run.count(cat(", and a spike is at least ")) == 1);
  CHECK(run.count(cat(" (rtol ", kRtol, "). Further spikes are only counted, as loss_spikes")) == 1);
  const auto logged = run.logger->values("loss_spikes");
  REQUIRE(logged.size() == 15);
  CHECK(logged.front() == std::pair<int64_t, double>(6, 1));
  CHECK(logged.back() == std::pair<int64_t, double>(20, 2));
}

TEST_CASE("SpikeDetection: the loss of a window that ends with the data is that of its step") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.accumulate_grad_batches = 3;
  TrainerComponents components;
  components.add(std::make_shared<SpikeDetection>(with(SpikeAction::warn)));
  const auto module = std::make_shared<Spiky>();
  module->at = {9};
  const LogLines lines;
  Trainer(options, components).fit(module, DataSource(regression_stream(32)));
  CHECK(lines.count("in step 4; the mean of the last 3 steps is ") == 1);
}

TEST_CASE("SpikeDetection skip: the run is that in which on_nonfinite skips the step, bit for bit") {
  const int64_t accumulate = GENERATE(1, 2, 3);
  CAPTURE(accumulate);
  const Run expected = fit({.at = {8}, .factor = kNan, .nonfinite = OnNonFinite::skip, .accumulate = accumulate});
  const Run run = fit({.at = {8}, .options = with(SpikeAction::skip), .accumulate = accumulate});
  CHECK(run.detection->spikes() == 1);
  CHECK(run.count("the optimizer's step is skipped") == 1);
  CHECK(run.report.global_step == expected.report.global_step);
  REQUIRE(run.module->after.size() == 20);
  for (size_t i = 0; i < 20; ++i) {
    CAPTURE(i);
    // Inside the window of the spike, the running statistics are those of its forwards.
    const bool in_window = i < 7 && static_cast<int64_t>(i) / accumulate == 7 / accumulate;
    if (!in_window) CHECK(same_weights(run.module->after[i], expected.module->after[i]));
  }
}

TEST_CASE("SpikeDetection rollback: the run is that in which on_nonfinite rolls back, bit for bit") {
  const Run expected = fit({.at = {6}, .factor = kNan, .nonfinite = OnNonFinite::rollback});
  const Run run = fit({.at = {6}, .options = with(SpikeAction::rollback)});
  CHECK(run.error.empty());
  CHECK(run.count("were restored from") == 1);
  CHECK(run.count("step=4.ckpt") >= 1);
  REQUIRE(run.module->after.size() == 20);
  CHECK(same_weights(run.module->after[5], run.module->after[3]));
  CHECK(run.report.global_step == expected.report.global_step);
  for (size_t i = 0; i < 20; ++i) CHECK(same_weights(run.module->after[i], expected.module->after[i]));
}

TEST_CASE("SpikeDetection rollback gives up if the same checkpoint does not help three times") {
  const Run run = fit({.at = {6, 7, 8, 9, 10, 11}, .options = with(SpikeAction::rollback)});
  CHECK_THAT(run.error, ContainsSubstring("[trainer.rollback] the loss is ") &&
                            ContainsSubstring("after 3 rollbacks to the same weights"));
  CHECK(run.count("were restored from") == 3);
  // With progress and saves in between, there may be more.
  const Run further = fit({.at = {5, 9, 13, 17, 20}, .options = with(SpikeAction::rollback), .save_every = 1});
  CHECK(further.error.empty());
  CHECK(further.count("were restored from") == 5);
}

TEST_CASE("SpikeDetection rollback without a checkpoint skips the step, and says so") {
  const Run skipped = fit({.at = {6}, .options = with(SpikeAction::skip), .save_every = 1000});
  const Run run = fit({.at = {6}, .options = with(SpikeAction::rollback), .save_every = 1000});
  CHECK(run.count("there is no checkpoint to return to, so the optimizer's step is skipped instead") == 1);
  CHECK(run.report.global_step == 20);
  CHECK(same_weights(weights(*run.module), weights(*skipped.module)));
}

TEST_CASE("SpikeDetection stop: the run ends after the spike, and says why") {
  const Run run = fit({.at = {6}, .options = with(SpikeAction::stop)});
  CHECK(run.report.global_step == 6);
  CHECK_THAT(run.report.stop_reason, ContainsSubstring("SpikeDetection: the loss is ") &&
                                         ContainsSubstring("in step 6; the mean of the last 5 steps is "));
  CHECK(run.count("SpikeDetection: the loss is ") == 1);
}

TEST_CASE("SpikeDetection: a fit whose losses are all in the warm-up says so") {
  SpikeDetection::Options options = with(SpikeAction::warn);
  options.warmup = 5000;
  const Run run = fit({.at = {6}, .options = options});
  CHECK(run.detection->spikes() == 0);
  CHECK(run.count("all 20 losses of the fit are in its warmup of 5000 steps") == 1);
  CHECK(fit({.at = {6}, .options = with(SpikeAction::warn)}).count("[spike_detection.only_warmup]") == 0);
}

TEST_CASE("SpikeDetection: patience spikes in a row are needed for the action") {
  SpikeDetection::Options options = with(SpikeAction::skip);
  options.patience = 2;
  const Run run = fit({.at = {4, 8, 9}, .factor = 100, .options = options});
  CHECK(run.detection->spikes() == 3);
  CHECK(run.count("in step 4; the mean of") == 0);
  CHECK(run.count("in step 9; the mean of") == 1);
  CHECK_FALSE(same_weights(run.module->after[3], run.module->after[2]));
  CHECK_FALSE(same_weights(run.module->after[7], run.module->after[6]));
  CHECK(same_weights(run.module->after[8], run.module->after[7]));
}

TEST_CASE("SpikeDetection: a filter selects the steps whose losses are judged, whatever the action is") {
  const SpikeAction action = GENERATE(SpikeAction::warn, SpikeAction::skip, SpikeAction::rollback);
  const int64_t accumulate = GENERATE(1, 2);
  CAPTURE(enum_text(action), accumulate);
  const auto spikes = [&](const CallbackFilter& filter) {
    const Run run =
        fit({.at = {8}, .options = with(action), .accumulate = accumulate, .save_every = 1, .filter = filter});
    // With accumulation, the spike is in the second batch of step 4.
    const bool made = !same_weights(run.module->after[7], run.module->after[accumulate == 1 ? 6 : 5]);
    CHECK(made == (action == SpikeAction::warn || run.detection->spikes() == 0));
    return run.detection->spikes();
  };
  const Interval spike = *Interval::parse(accumulate == 1 ? "8st" : "4st");
  const Interval before = *Interval::parse(accumulate == 1 ? "7st" : "3st");
  CHECK(spikes({.every = {}, .from = {}, .until = before, .once = {}}) == 0);
  CHECK(spikes({.every = {}, .from = {}, .until = spike, .once = {}}) == 1);
  CHECK(spikes({.every = *Interval::parse("2st"), .from = {}, .until = {}, .once = {}}) == 1);
  CHECK(spikes({.every = *Interval::parse("3st"), .from = {}, .until = {}, .once = {}}) == 0);
  // It is the first loss that the callback sees.
  CHECK(spikes({.every = {}, .from = spike, .until = {}, .once = {}}) == 0);
}

TEST_CASE("SpikeDetection: under 16-mixed it judges the loss itself, not the scaled one") {
  const Run spiky = fit({.at = {8},
                         .factor = 100,
                         .options = with(SpikeAction::skip),
                         .accumulate = 2,
                         .precision = std::make_shared<Float16Mixed>(GradScaler::Options{.init_scale = 64})});
  CHECK(spiky.detection->spikes() == 1);
  const double loss = (spiky.module->losses[6] + spiky.module->losses[7]) / 2;
  CHECK(spiky.count(cat("the loss is ", loss, " in step 4; ")) == 1);
  const auto parameter = [](const std::map<std::string, Tensor>& all) { return all.at("first.weight"); };
  CHECK(parameter(spiky.module->after[7]).equal(parameter(spiky.module->after[5])));
  CHECK_FALSE(parameter(spiky.module->after[9]).equal(parameter(spiky.module->after[7])));
}

TEST_CASE("SpikeDetection: losses that are not finite are left to on_nonfinite") {
  const Run run = fit({.at = {6}, .factor = kNan, .options = with(SpikeAction::skip), .nonfinite = OnNonFinite::skip});
  CHECK(run.detection->spikes() == 0);
  CHECK(run.count("is not finite: the optimizer's step is skipped") == 1);
}

TEST_CASE("SpikeDetection: a run that is stopped inside a window and resumed ends like a quiet one, bit for bit") {
  const SpikeAction action = GENERATE(SpikeAction::warn, SpikeAction::skip);
  const bool by_signal = GENERATE(true, false);
  const int64_t ends_at = GENERATE(7, 10, 13);
  CAPTURE(static_cast<int>(action), by_signal, ends_at);
  struct Outcome {
    std::map<std::string, Tensor> weights;
    int64_t spikes;
  };
  const auto run = [&](const TemporaryFolder& folder, int64_t at, const CheckpointChoice& from) {
    at::manual_seed(3);
    const auto module = std::make_shared<Spiky>();
    module->at = {8, 14};
    module->factor = 1000;
    const auto detection = std::make_shared<SpikeDetection>(with(action));
    interrupted::Settings settings{.from = from, .ends_at = at, .by_signal = by_signal};
    settings.module = module;
    settings.saving.every_n_train_steps = 1;
    settings.change = [&](TrainerOptions& options, TrainerComponents& components) {
      options.max_epochs = 2;
      options.accumulate_grad_batches = 3;
      components.add(detection);
    };
    interrupted::fit(folder, std::move(settings));
    return Outcome{weights(*module), detection->spikes()};
  };
  const TemporaryFolder quiet_folder, folder;
  const Outcome whole = run(quiet_folder, -1, {});
  CHECK(whole.spikes == 2);
  run(folder, ends_at, {});
  const Outcome rest = run(folder, -1, "auto");
  CHECK(rest.spikes == 2);
  CHECK(same_weights(whole.weights, rest.weights));
}

TEST_CASE("SpikeDetection: ranks decide alike, by the mean of their losses, also after a resume inside a window") {
  constexpr int64_t kRanks = 2;
  // A spike on rank 1 alone; each row is a window of two batches, by rank.
  const double losses[][2][2] = {{{1, 2}, {3, 2}}, {{2, 2}, {2, 2}}, {{2, 1}, {2, 200}}, {{2, 2}, {1, 3}}};
  ThreadWorld world(kRanks);
  std::vector<std::string> verdicts(kRanks);
  std::vector<StateTree> saved(kRanks);
  const auto work = [&](int64_t rank) {
    ThreadCollectives collectives(world, rank);
    const auto loss = [&](size_t window, size_t batch) { return at::full({}, losses[window][rank][batch]); };
    const auto begin = [&](FakeRunContext& run, SpikeDetection& detection) {
      run.collectives_of_ranks = &collectives;
      detection.setup(run, TrainerFn::fit);
    };
    FakeRunContext run, resumed_run;
    SpikeDetection first({.action = SpikeAction::skip, .rtol = 5.0}),
        second({.action = SpikeAction::skip, .rtol = 5.0});
    begin(run, first);
    const auto judge = [&](FakeRunContext& in) {
      return std::to_string(static_cast<int>(in.judges.front()->judge_step(in)));
    };
    for (size_t window : {0, 1}) {
      for (size_t batch : {0, 1}) run.judges.front()->see_loss(run, loss(window, batch));
      verdicts[static_cast<size_t>(rank)] += judge(run);
    }
    run.judges.front()->see_loss(run, loss(2, 0));
    StateTree checkpoint;
    checkpoint["callbacks"][first.state_key()] = first.state();
    first.on_save_checkpoint(run, checkpoint);
    saved[static_cast<size_t>(rank)] = checkpoint["callbacks"][first.state_key()];
    world.wait();
    begin(resumed_run, second);
    second.load_state(saved[0]);  // rank 0's
    resumed_run.judges.front()->see_loss(resumed_run, loss(2, 1));
    verdicts[static_cast<size_t>(rank)] += judge(resumed_run);
    verdicts[static_cast<size_t>(rank)] += resumed_run.judges.front()->finding();
    for (size_t batch : {0, 1}) resumed_run.judges.front()->see_loss(resumed_run, loss(3, batch));
    verdicts[static_cast<size_t>(rank)] += judge(resumed_run);
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
  // unknown, good, skip with the mean of 1.5 and 101, good
  CHECK(
      verdicts[0] ==
      "102the loss is 51.25 in step 1; the mean of the last 2 steps is 2.0, and a spike is at least 12.0 (rtol 5.0)0");
  CHECK(verdicts[1] == verdicts[0]);
}

TEST_CASE("SpikeDetection: options and runs that it cannot work with are refused") {
  CHECK_THAT(message_of<ConfigError>([] { SpikeDetection({.rtol = {}}); }), ContainsSubstring("all are null"));
  CHECK_THAT(message_of<ConfigError>([] { SpikeDetection({.window = 1, .z = 3.0}); }),
             ContainsSubstring("z needs a window of at least 2"));
  struct Closing : BoringModule {
    OptimizerPlan configure_optimizers() override { return std::make_shared<LBFGS>(LBFGS::Options{}); }
  };
  struct ByHand : SelfPlanned {
    bool automatic_optimization() const override { return false; }
  };
  const auto refused = [](const std::shared_ptr<LightningModule>& module, SpikeAction action) {
    TemporaryFolder folder;
    TrainerComponents components;
    components.add(std::make_shared<SpikeDetection>(with(action)));
    return message_of<ConfigError>([&] { Trainer(quiet(folder), components).fit(module, regression_data(8, 0), {}); });
  };
  CHECK_THAT(refused(std::make_shared<Closing>(), SpikeAction::skip), ContainsSubstring("LBFGS makes several"));
  CHECK_THAT(refused(std::make_shared<ByHand>(), SpikeAction::rollback),
             ContainsSubstring("action: rollback needs automatic optimization"));
}

TEST_CASE("SpikeDetection: a checkpoint of weights with another callback's state gets none of its own") {
  ThreadWorld world(2);
  std::vector<StateTree> saved(2, StateTree::map({{"callbacks", StateTree::map({{"WeightAveraging", 1}})}}));
  const auto work = [&](int64_t rank) {
    ThreadCollectives collectives(world, rank);
    FakeRunContext run;
    run.collectives_of_ranks = &collectives;
    SpikeDetection detection({.action = SpikeAction::skip});
    detection.setup(run, TrainerFn::fit);
    run.judges.front()->see_loss(run, at::full({}, 2.0));
    detection.on_save_checkpoint(run, saved[static_cast<size_t>(rank)]);
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
  for (const StateTree& checkpoint : saved)
    CHECK_FALSE(checkpoint.at("callbacks").contains(SpikeDetection({}).state_key()));
}

TEST_CASE("SpikeDetection: manual optimization that returns no loss is reported") {
  struct ByHand : SelfPlanned {
    bool returns = false;
    bool automatic_optimization() const override { return false; }
    StepOutput training_step(const Batch& b, int64_t) override {
      const Tensor loss = at::mse_loss(forward(b[0]), b[1]);
      manual_backward(loss);
      optimizers(0).step();
      optimizers(0).zero_grad();
      return returns ? StepOutput(loss) : StepOutput();
    }
  };
  for (const bool returns : {false, true}) {
    CAPTURE(returns);
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.max_epochs = 2;
    TrainerComponents components;
    components.add(std::make_shared<SpikeDetection>(with(SpikeAction::warn)));
    const auto module = std::make_shared<ByHand>();
    module->returns = returns;
    const LogLines lines;
    Trainer(options, components).fit(module, regression_data(16, 0, 4, false), {});
    CHECK(lines.count("no training_step has returned a loss in 4 steps") == (returns ? 0 : 1));
  }
}

}  // namespace spike_detection_test
