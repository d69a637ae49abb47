// WeightAveraging in runs of the Trainer.
#include "callbacks/scored.h"
#include "fulgur/callbacks/weight_averaging.h"
#include "trainer/checkpointing/interrupted.h"

#include <ATen/core/grad_mode.h>

#include <bit>
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <limits>
#include <utility>

#include "callbacks/weights/diverging_once.h"
#include "fulgur/callbacks/spike_detection.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/contracts/shapes_batches.h"
#include "fulgur/loggers/csv_logger.h"
#include "fulgur/nn/batch_norm.h"
#include "fulgur/optim/schedules.h"
#include "fulgur/optim/sgd.h"
#include "support/expect_error.h"

namespace averaged_runs_test {

using namespace fulgur;
using namespace fulgur::test;
using namespace fulgur::test::interrupted;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

using Options = WeightAveraging::Options;
using Change = std::function<void(TrainerOptions&, TrainerComponents&)>;

Interval length(const char* text) { return *Interval::parse(text); }

Options ema() { return {.decay = 0.9, .copy_at_end = false}; }
Options swa() {
  return {.kind = AveragingKind::swa,
          .start = length("2ep"),
          .swa_lrs = {0.01},
          .annealing_epochs = 2,
          .copy_at_end = false};
}

/// What one fit leaves behind.
struct Averaged {
  std::shared_ptr<WeightAveraging> callback;
  std::shared_ptr<LightningModule> module;
  FitReport report;
  std::map<std::string, Tensor> averages() const {
    std::map<std::string, Tensor> all;
    const StateTree averages = callback->averaged_parameters();
    for (const auto& [name, value] : averages.as_map()) all[name] = value.tensor();
    return all;
  }
};

template <class Module = SelfPlanned, class... Arguments>
std::shared_ptr<Module> seeded(Arguments... arguments) {
  at::manual_seed(3);
  return std::make_shared<Module>(arguments...);
}

Averaged train(const TemporaryFolder& folder, const Options& options, Settings settings = {},
               const Change& change = {}) {
  Averaged run{.callback = std::make_shared<WeightAveraging>(options), .module = settings.module, .report = {}};
  if (!run.module) run.module = settings.module = seeded<SelfPlanned>(0.3);
  settings.change = [&](TrainerOptions& o, TrainerComponents& components) {
    components.add(run.callback);
    components.loggers = {std::make_shared<CsvLogger>()};
    if (change) change(o, components);
  };
  run.report = fit(folder, settings);
  return run;
}

std::string rows(const TemporaryFolder& folder) { return read_text(folder / "fulgur_logs/version_0/metrics.csv"); }

double metric_of(const EvalReport& report, const std::string& name) {
  for (const auto& [key, value] : report.loaders.at(0))
    if (key == name) return value;
  throw Error("no metric " + name);
}

/// The average that a loop makes by hand, after each optimizer step.
struct ByHand : Callback {
  std::map<std::string, Tensor> average;
  int64_t step = 0;
  void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
    if (run.progress().global_step == step) return;
    step = run.progress().global_step;
    const at::NoGradGuard no_grad;
    for (const auto& [name, value] : unique_parameters(run.module())) {
      if (step == 1)
        average[name] = value.detach().clone();
      else
        average[name].lerp_(value.detach(), 1 - 0.9);
    }
  }
};

/// Keeps the weights of each training batch and of each validation.
struct Watching : SelfPlanned {
  using SelfPlanned::SelfPlanned;
  std::vector<std::map<std::string, Tensor>> validated;
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override {
    if (batch_idx == 0) validated.push_back(weights(*this));
    return SelfPlanned::validation_step(batch, batch_idx, loader_idx);
  }
};

}  // namespace

TEST_CASE("WeightAveraging: an ema has the bits of a loop by hand, which updates it after each optimizer step") {
  const int accumulation = GENERATE(1, 3);
  CAPTURE(accumulation);
  const auto by_hand = std::make_shared<ByHand>();
  const TemporaryFolder folder;
  const Averaged run = train(folder, ema(), {}, [&](TrainerOptions& options, TrainerComponents& components) {
    options.accumulate_grad_batches = accumulation;
    components.add(by_hand);
  });
  CHECK(run.callback->n_averaged() == run.report.global_step);
  CHECK(run.report.global_step == 6 * (accumulation == 1 ? 10 : 4));
  CHECK(same_weights(run.averages(), by_hand->average));
}

TEST_CASE("WeightAveraging: training is that of a run without it, and validations compute with the average") {
  const TemporaryFolder folder, plain_folder;
  const auto plain = seeded<SelfPlanned>(0.3);
  fit(plain_folder, {.module = plain});
  const auto module = seeded<Watching>(0.3);
  train(folder, ema(), {.module = module}, [&](TrainerOptions& options, TrainerComponents&) {
    options.val_check_interval = 4;  // inside epochs, and not at their ends
  });
  CHECK(same_weights(weights(*module), weights(*plain)));
  REQUIRE(module->validated.size() == 12);
  CHECK_FALSE(same_weights(module->validated.back(), weights(*module)));
  SECTION("the last validation has the last average") {
    const auto at_end = std::make_shared<ByHand>();
    const TemporaryFolder other;
    const auto watching = seeded<Watching>(0.3);
    const Averaged run = train(other, ema(), {.module = watching},
                               [&](TrainerOptions&, TrainerComponents& components) { components.add(at_end); });
    REQUIRE(watching->validated.size() == 6);
    CHECK(same_weights(watching->validated.back(), at_end->average));
  }
}

TEST_CASE("WeightAveraging: at the end the module gets the average, and the last checkpoint has the weights") {
  const TemporaryFolder folder, plain_folder;
  const auto plain = seeded<SelfPlanned>(0.3);
  fit(plain_folder, {.module = plain});
  Options options = ema();
  options.copy_at_end = true;
  const Averaged run = train(folder, options);
  CHECK(same_weights(weights(*run.module), run.averages()));
  REQUIRE(run.report.last_checkpoint);
  std::map<std::string, Tensor> saved;
  for (const auto& [name, value] : read_checkpoint(*run.report.last_checkpoint).module) saved[name] = value;
  CHECK(same_weights(saved, weights(*plain)));
}

TEST_CASE("WeightAveraging: a run that is killed or gets a signal, and is resumed, has the bits of a quiet one") {
  const Options options = GENERATE(ema(), swa());
  const bool by_signal = GENERATE(true, false);
  CAPTURE(enum_text(options.kind), by_signal);
  const auto saving = [] {
    ModelCheckpoint::Options every_step;
    every_step.every_n_train_steps = 1;
    every_step.save_top_k = 0;
    return every_step;
  };
  const TemporaryFolder quiet_folder;
  const Averaged quiet_run = train(quiet_folder, options, {.saving = saving()});
  REQUIRE(quiet_run.callback->n_averaged() > 1);
  for (const int64_t batch : {1, 9, 10, 29, 30, 41, 59}) {
    CAPTURE(batch);
    const TemporaryFolder folder;
    train(folder, options, {.ends_at = batch, .by_signal = by_signal, .saving = saving()});
    const Averaged resumed = train(folder, options, {.from = "auto", .saving = saving()});
    CHECK(resumed.callback->n_averaged() == quiet_run.callback->n_averaged());
    CHECK(same_weights(resumed.averages(), quiet_run.averages()));
    CHECK(same_weights(weights(*resumed.module), weights(*quiet_run.module)));
    CHECK(rows(folder) == rows(quiet_folder));
  }
}

TEST_CASE("WeightAveraging: with a filter, neither a resume nor the end of training updates the average") {
  struct Filtered {
    std::optional<Interval> CallbackFilter::*option;
    const char* value;
    int64_t updates;  // of 60 steps in 6 epochs
  };
  const Filtered filtered =
      GENERATE(Filtered{&CallbackFilter::once, "2ep", 10}, Filtered{&CallbackFilter::from, "2ep", 50},
               Filtered{&CallbackFilter::until, "1ep", 10}, Filtered{&CallbackFilter::every, "7st", 8});
  CAPTURE(filtered.value, filtered.updates);
  const Change with_filter = [&](TrainerOptions&, TrainerComponents& components) {
    CallbackFilter filter;
    filter.*filtered.option = length(filtered.value);
    components.callbacks.back()->set_common_options(filter);
  };
  const TemporaryFolder quiet_folder;
  const Averaged quiet_run = train(quiet_folder, ema(), {}, with_filter);
  CHECK(quiet_run.callback->n_averaged() == filtered.updates);
  for (const int64_t batch : {7, 10, 15, 25}) {
    CAPTURE(batch);
    const TemporaryFolder folder;
    train(folder, ema(), {.ends_at = batch, .by_signal = true}, with_filter);
    const Averaged resumed = train(folder, ema(), {.from = "auto"}, with_filter);
    CHECK(resumed.callback->n_averaged() == filtered.updates);
    CHECK(same_weights(resumed.averages(), quiet_run.averages()));
    CHECK(rows(folder) == rows(quiet_folder));
  }
}

TEST_CASE("WeightAveraging: an exception in a validation leaves the weights of training in the checkpoint") {
  struct FailingOnce : SelfPlanned {
    bool fails;
    explicit FailingOnce(bool on_purpose) : SelfPlanned(0.3), fails(on_purpose) {}
    Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override {
      if (fails && run().progress().epoch == 2 && batch_idx == 1) throw Killed();
      return SelfPlanned::validation_step(batch, batch_idx, loader_idx);
    }
  };
  ModelCheckpoint::Options saving;
  saving.save_on_exception = true;
  saving.every_n_epochs = 100;
  const TemporaryFolder quiet_folder, folder;
  const Averaged quiet_run = train(quiet_folder, ema(), {.saving = saving, .module = seeded<FailingOnce>(false)});
  const auto failed = seeded<FailingOnce>(true);
  train(folder, ema(), {.saving = saving, .module = failed});
  const Averaged resumed =
      train(folder, ema(), {.from = "auto", .saving = saving, .module = seeded<FailingOnce>(false)});
  CHECK(same_weights(weights(*resumed.module), weights(*quiet_run.module)));
  CHECK(same_weights(resumed.averages(), quiet_run.averages()));
  CHECK(rows(folder) == rows(quiet_folder));
}

TEST_CASE("WeightAveraging: a step that on_nonfinite skips does not update the average") {
  struct Diverging : SelfPlanned {
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      StepOutput output = SelfPlanned::training_step(batch, batch_idx);
      if (global_step() == 7) output.loss = output.loss * std::numeric_limits<double>::quiet_NaN();
      return output;
    }
  };
  const TemporaryFolder folder;
  const Averaged run = train(folder, ema(), {.module = seeded<Diverging>()},
                             [](TrainerOptions& o, TrainerComponents&) { o.on_nonfinite = OnNonFinite::skip; });
  CHECK(run.report.global_step == 60);
  CHECK(run.callback->n_averaged() == 59);
}

TEST_CASE("WeightAveraging: a step that SpikeDetection skips does not update the average") {
  // Without a checkpoint, a rollback becomes a skip.
  const SpikeAction action = GENERATE(SpikeAction::skip, SpikeAction::rollback);
  CAPTURE(enum_text(action));
  struct Spiky : SelfPlanned {
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      StepOutput output = SelfPlanned::training_step(batch, batch_idx);
      if (global_step() == 7) output.loss = output.loss + output.loss.detach() * 1000;
      return output;
    }
  };
  const TemporaryFolder folder;
  const Averaged run =
      train(folder, ema(), {.module = seeded<Spiky>()}, [&](TrainerOptions&, TrainerComponents& components) {
        components.add(std::make_shared<SpikeDetection>(SpikeDetection::Options{.action = action, .rtol = 20}));
      });
  CHECK(run.report.global_step == 60);
  CHECK(run.callback->n_averaged() == 59);
}

TEST_CASE("WeightAveraging: after a rollback, the average continues from the checkpoint's") {
  const TemporaryFolder folder;
  const Averaged run = train(folder, ema(), {.module = seeded<DivergingOnce<SelfPlanned, 25>>()},
                             [](TrainerOptions& o, TrainerComponents&) { o.on_nonfinite = OnNonFinite::rollback; });
  // The checkpoint has the average of 20 steps; one batch of 60 made none.
  CHECK(run.callback->n_averaged() == 60 - 5 - 1);
  for (const auto& [name, value] : run.averages()) CHECK(value.isfinite().all().item<bool>());
}

namespace {

/// Makes its own steps; the losses of the batches from `first` to `last` are not finite.
struct ManualSteps : SelfPlanned {
  int64_t first, last;
  ManualSteps(int64_t first_bad, int64_t last_bad) : SelfPlanned(0.3), first(first_bad), last(last_bad) {}
  bool automatic_optimization() const override { return false; }
  StepOutput training_step(const Batch& batch, int64_t) override {
    Tensor loss = at::mse_loss(forward(batch[0]), batch[1]);
    if (global_step() >= first && global_step() <= last) loss = loss * std::numeric_limits<double>::quiet_NaN();
    auto [optimizer] = optimizers<1>();
    optimizer.zero_grad();
    manual_backward(loss);
    optimizer.step();
    return loss.detach();
  }
};

}  // namespace

TEST_CASE("WeightAveraging: with manual optimization, the batch after a rollback updates the average") {
  const TemporaryFolder folder;
  const Averaged run = train(folder, ema(), {.module = seeded<ManualSteps>(25, 25)},
                             [](TrainerOptions& o, TrainerComponents&) { o.on_nonfinite = OnNonFinite::rollback; });
  REQUIRE(run.report.global_step == 60);
  // As with automatic optimization: the checkpoint has the average of 20 steps, and one batch of 60 made none.
  CHECK(run.callback->n_averaged() == 60 - 5 - 1);
}

TEST_CASE("WeightAveraging: a skipped step at which a run ends counts as skipped in the run that resumes") {
  struct Skipping : SelfPlanned {
    int64_t first, last;
    Skipping(int64_t first_bad, int64_t last_bad) : SelfPlanned(0.3), first(first_bad), last(last_bad) {}
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      StepOutput output = SelfPlanned::training_step(batch, batch_idx);
      if (global_step() >= first && global_step() <= last)
        output.loss = output.loss * std::numeric_limits<double>::quiet_NaN();
      return output;
    }
  };
  const bool manual = GENERATE(false, true);
  struct Case {
    const char* every;
    int64_t first, last;
  };
  // The last step of an epoch; and two steps between two updates, of which the first run makes one.
  const Case skips = GENERATE(Case{"1st", 9, 9}, Case{"2st", 8, 9}, Case{"2st", 14, 15});
  CAPTURE(manual, skips.every, skips.first);
  Options options = ema();
  options.every = length(skips.every);
  const auto module = [&]() -> std::shared_ptr<LightningModule> {
    if (manual) return seeded<ManualSteps>(skips.first, skips.last);
    return seeded<Skipping>(skips.first, skips.last);
  };
  const Change skip = [](TrainerOptions& o, TrainerComponents&) { o.on_nonfinite = OnNonFinite::skip; };
  ModelCheckpoint::Options saving;
  saving.every_n_train_steps = 1;
  saving.save_top_k = 0;
  const TemporaryFolder quiet_folder, folder;
  const Averaged quiet_run = train(quiet_folder, options, {.saving = saving, .module = module()}, skip);
  train(folder, options, {.ends_at = skips.first, .saving = saving, .module = module()}, skip);
  const Averaged resumed = train(folder, options, {.from = "auto", .saving = saving, .module = module()}, skip);
  CHECK(resumed.callback->n_averaged() == quiet_run.callback->n_averaged());
  CHECK(same_weights(resumed.averages(), quiet_run.averages()));
}

TEST_CASE("WeightAveraging: a rollback to a checkpoint from before the callback was added begins the average again") {
  ModelCheckpoint::Options saving;
  saving.every_n_train_steps = 5;
  const TemporaryFolder folder;
  fit(folder,
      {.ends_at = 12, .by_signal = false, .saving = saving, .module = seeded<DivergingOnce<SelfPlanned, 13>>()});
  const Averaged run =
      train(folder, ema(), {.from = "auto", .saving = saving, .module = seeded<DivergingOnce<SelfPlanned, 13>>()},
            [](TrainerOptions& o, TrainerComponents&) { o.on_nonfinite = OnNonFinite::rollback; });
  // The average of steps 11 to 13 is discarded; the batch after them made no step.
  CHECK(run.callback->n_averaged() == 60 - 14);
}

namespace {

struct StreamData : DataModule {
  Loaders loaders(RunningStage stage) override {
    return stage == RunningStage::train ? Loaders{regression_stream(40)} : Loaders();
  }
};

/// Its loss is a spike in the last batch of the fifth epoch.
struct SpikyAtEnd : SelfPlanned {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = SelfPlanned::training_step(batch, batch_idx);
    if (current_epoch() == 4 && batch_idx == 9) output.loss = output.loss + output.loss.detach() * 1000;
    return output;
  }
};

}  // namespace

TEST_CASE("WeightAveraging: a rollback in a window that the end of the data closes is followed by no update") {
  // The length of the stream is unknown, so the end closes a window of one batch.
  const bool is_stream = GENERATE(true, false);
  CAPTURE(is_stream);
  Options options = swa();
  options.start = length("0st");
  options.swa_lrs = {};
  options.annealing_epochs.reset();
  options.update_bn = false;
  const TemporaryFolder folder;
  const auto data = is_stream ? std::make_shared<StreamData>() : nullptr;
  LogLines lines;
  const auto callback = std::make_shared<WeightAveraging>(options);
  TrainerOptions trainer = quiet(folder);
  trainer.max_epochs = 6;
  trainer.limit_val_batches = 0;
  trainer.accumulate_grad_batches = 3;
  TrainerComponents components;
  components.seed = 5;
  components.add(callback);
  components.add(std::make_shared<SpikeDetection>(
      SpikeDetection::Options{.action = SpikeAction::rollback, .warmup = 4, .rtol = 20}));
  const auto module = seeded<SpikyAtEnd>();
  if (is_stream)
    Trainer(trainer, components).fit(module, std::shared_ptr<DataModule>(data));
  else
    Trainer(trainer, components).fit(module, regression_data(40, 0));
  CHECK(lines.count("were restored from") == 1);
  // The checkpoint of the fourth epoch has the average of four; the fifth epoch ends with the weights of that
  // checkpoint.
  CHECK(callback->n_averaged() == 5);
}

TEST_CASE("WeightAveraging: with several optimizers, a batch is skipped if all of them skip their steps") {
  struct Two : BoringModule {
    bool both = false;
    explicit Two(bool both_fail) : both(both_fail) {}
    bool automatic_optimization() const override { return false; }
    OptimizerPlan configure_optimizers() override {
      return OptimizerPlan::several(
          {{std::make_shared<SGD>(parameter_groups(*this, "first."), SGD::Options{.lr = 0.05}), {}},
           {std::make_shared<SGD>(parameter_groups(*this, "second."), SGD::Options{.lr = 0.05}), {}}});
    }
    StepOutput training_step(const Batch& batch, int64_t) override {
      auto [one, other] = optimizers<2>();
      const Tensor loss = at::mse_loss(forward(batch[0]), batch[1]);
      manual_backward(loss);
      first->weight.mutable_grad().fill_(std::numeric_limits<float>::quiet_NaN());
      if (both) second->weight.mutable_grad().fill_(std::numeric_limits<float>::quiet_NaN());
      one.step();
      other.step();
      one.zero_grad();
      other.zero_grad();
      return loss.detach();
    }
  };
  for (const bool both : {false, true}) {
    CAPTURE(both);
    const TemporaryFolder folder;
    const Averaged run = train(folder, ema(), {.module = seeded<Two>(both)}, [](TrainerOptions& o, TrainerComponents&) {
      o.on_nonfinite = OnNonFinite::skip;
      o.max_epochs = 1;
    });
    CHECK(run.report.global_step == 10);
    CHECK(run.callback->n_averaged() == (both ? 0 : 10));
  }
}

TEST_CASE("WeightAveraging: test computes with the average of a checkpoint, also of one with weights only") {
  ModelCheckpoint::Options saving;
  saving.save_weights_only = GENERATE(false, true);
  CAPTURE(saving.save_weights_only);
  const TemporaryFolder folder, test_folder;
  Options options = ema();
  options.copy_at_end = true;
  ModelCheckpoint::Options every_epoch = saving;
  every_epoch.save_top_k = -1;
  every_epoch.filename = "{epoch}";
  const Averaged run = train(folder, options, {.saving = every_epoch});
  // The average of the last epoch, in the module now.
  const auto data = regression_data(40, 8);
  const auto test = [&](const std::shared_ptr<LightningModule>& module, bool averages, const CheckpointChoice& from) {
    TrainerComponents components;
    components.seed = 1;
    if (averages) components.add(std::make_shared<WeightAveraging>(options));
    return metric_of(Trainer(quiet(test_folder), components).test(module, data, from), "test_loss");
  };
  const double expected = test(run.module, false, {});
  const std::string checkpoint = (run.report.run_dir / "checkpoints/epoch=5.ckpt").string();
  const auto module = seeded<SelfPlanned>(0.3);
  CHECK(test(module, true, checkpoint) == expected);
  // Afterwards the module has the checkpoint's weights, which were trained.
  const double after = test(module, false, {});  // before the checkpoint is loaded again
  CHECK(after != expected);
  CHECK(after == test(module, false, checkpoint));
}

TEST_CASE("WeightAveraging: swa averages the weights at the ends of epochs, with its own learning rates") {
  struct AtEnds : Callback {
    std::vector<std::map<std::string, Tensor>> ends;
    std::vector<double> rates;
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t batch_idx) override {
      if (batch_idx == 0) rates.push_back(run.optimizers().at(0)->groups().at(0).lr);
    }
    void on_train_epoch_end(RunContext& run) override { ends.push_back(weights(run.module())); }
  };
  const auto at_ends = std::make_shared<AtEnds>();
  const TemporaryFolder folder;
  const Averaged run = train(folder, swa(), {}, [&](TrainerOptions&, TrainerComponents& c) { c.add(at_ends); });
  REQUIRE(at_ends->ends.size() == 6);
  CHECK(run.callback->n_averaged() == 4);  // the first of them is the third epoch
  const at::NoGradGuard no_grad;
  std::map<std::string, Tensor> mean = at_ends->ends[2];
  for (size_t n = 1; n < 4; ++n)
    for (auto& [name, value] : mean) value.lerp_(at_ends->ends[2 + n].at(name), 1.0 / static_cast<double>(n + 1));
  CHECK(same_weights(run.averages(), mean));
  CHECK(at_ends->rates.at(1) == 0.05);
  CHECK(at_ends->rates.at(2) == 0.05);
  CHECK(at_ends->rates.at(3) == Approx(0.03));  // half of the way
  CHECK(at_ends->rates.at(4) == Approx(0.01));
  CHECK(at_ends->rates.at(5) == Approx(0.01));
}

namespace {

struct Normed : SelfPlanned {
  nn::BatchNorm1d norm{nullptr};
  Normed() { norm = register_module("norm", nn::BatchNorm1d(4)); }
  Tensor normed(const Tensor& x) { return forward(norm->forward(x)); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor loss = at::mse_loss(normed(batch[0]), batch[1]);
    log("train_loss", loss);
    return loss;
  }
  Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    log("val_loss", at::mse_loss(normed(batch[0]), batch[1]));
    return {};
  }
};

}  // namespace

TEST_CASE("WeightAveraging: a fit that ends before swa_lrs are reached says so") {
  const auto lines_of = [](std::optional<int64_t> annealing) {
    const TemporaryFolder folder;
    std::string lines;
    Settings settings;
    settings.change = [&](TrainerOptions&, TrainerComponents& components) {
      Options options = swa();
      options.annealing_epochs = annealing;
      components.add(std::make_shared<WeightAveraging>(options));
    };
    fit(folder, settings, &lines);
    return lines;
  };
  // Four of the six epochs begin after the start, so the rates reach swa_lrs in the fourth if annealing takes three.
  const auto short_of = [](const char* epochs) {
    return ContainsSubstring(cat("the learning rates did not reach swa_lrs, since annealing_epochs is ", epochs,
                                 ", and 4 epochs began after start (2ep). Set annealing_epochs to 3 or less"));
  };
  CHECK_THAT(lines_of(4), short_of("4"));
  CHECK_THAT(lines_of({}), short_of("10"));
  CHECK_THAT(lines_of(3), !ContainsSubstring("weight_averaging.short_annealing"));
}

TEST_CASE("WeightAveraging: a second one is refused, with what to do") {
  const TemporaryFolder folder;
  Settings settings;
  settings.change = [](TrainerOptions&, TrainerComponents& components) {
    components.add(std::make_shared<WeightAveraging>(ema())).add(std::make_shared<WeightAveraging>(swa()));
  };
  CHECK_THAT(message_of<ConfigError>([&] { fit(folder, settings); }),
             ContainsSubstring("under the key 'WeightAveraging'. A run may have one of this class: remove the other."));
}

TEST_CASE("WeightAveraging: at the end of training, swa recomputes the statistics of batch norms") {
  const auto data = regression_data(40, 8, 4, /*shuffle=*/false);
  Options options = swa();
  options.copy_at_end = true;
  const TemporaryFolder folder;
  const Averaged run = train(folder, options, {.module = seeded<Normed>(), .data = data});
  // The input of this layer does not depend on weights: means of batches and of their variances.
  const Tensor x = regression(40, 1)[0].view({10, 4, 4});
  const auto module = std::dynamic_pointer_cast<Normed>(run.module);
  CHECK(module->norm->running_mean.allclose(x.mean(1).mean(0), 1e-5, 1e-6));
  CHECK(module->norm->running_var.allclose(x.var(1, /*unbiased=*/true).mean(0), 1e-5, 1e-6));
  CHECK(module->norm->num_batches_tracked.item<int64_t>() == 10);
  CHECK(module->norm->options.momentum() == 0.1);
  // The last checkpoint has them, although one of the last step existed already.
  REQUIRE(run.report.last_checkpoint);
  CHECK(run.report.last_checkpoint->filename() == "epoch=5-step=60-averaged.ckpt");
  const StateTree saved = read_checkpoint(*run.report.last_checkpoint).state;
  CHECK(saved.at("callbacks")
            .at("WeightAveraging")
            .at("recomputed")
            .at("norm.running_mean")
            .tensor()
            .equal(module->norm->running_mean));

  SECTION("unless update_bn is false") {
    options.update_bn = false;
    const TemporaryFolder other;
    const Averaged without = train(other, options, {.module = seeded<Normed>(), .data = data});
    CHECK(std::dynamic_pointer_cast<Normed>(without.module)->norm->num_batches_tracked.item<int64_t>() == 60);
  }
}

TEST_CASE("WeightAveraging: a run that continues after the statistics were recomputed has the bits of a quiet one") {
  const Options options = swa();
  const TemporaryFolder quiet_folder, folder;
  const Averaged quiet_run = train(quiet_folder, options, {.module = seeded<Normed>()});
  // In the middle of an epoch, and at its end.
  CheckpointChoice from;
  for (const int64_t steps : {44, 50}) {
    const Averaged part = train(folder, options, {.from = from, .module = seeded<Normed>()},
                                [&](TrainerOptions& o, TrainerComponents&) { o.max_steps = steps; });
    REQUIRE(part.report.global_step == steps);
    REQUIRE(part.callback->state().at("recomputed").contains("norm.running_mean"));
    from = part.report.last_checkpoint->string();
  }
  const Averaged resumed = train(folder, options, {.from = from, .module = seeded<Normed>()});
  CHECK(same_weights(weights(*resumed.module), weights(*quiet_run.module)));
  CHECK(same_weights(resumed.averages(), quiet_run.averages()));
}

TEST_CASE("WeightAveraging: a fit that ends before the first update says so") {
  const auto warnings = [](const Options& options, int64_t steps, int64_t trial) {
    const TemporaryFolder folder;
    TrainerOptions trainer_options = quiet(folder);
    trainer_options.max_steps = steps;
    trainer_options.fast_dev_run.batches = trial;
    TrainerComponents components;
    components.add(std::make_shared<WeightAveraging>(options));
    const LogLines lines;
    Trainer(trainer_options, components).fit(seeded<SelfPlanned>(), regression_data(40, 8));
    return lines.count("the average was never updated in ");
  };
  const Options from_start{.kind = AveragingKind::swa, .start = length("0st")};
  CHECK(warnings(from_start, 7, 0) == 1);  // the epoch has ten batches
  CHECK(warnings(from_start, 10, 0) == 0);
  CHECK(warnings(ema(), 7, 0) == 0);
  Options late = from_start;
  late.start = length("5ep");
  CHECK(warnings(late, 10, 0) == 1);
  CHECK(warnings(late, 10, 3) == 0);
}

namespace {

/// Fails or gets a signal in a batch of the pass that recomputes the statistics.
struct EndingInPass : Normed {
  int64_t at = -1;
  bool by_signal = false;
  int64_t trained = 0, passed = 0;  // batches
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    const bool passes = !at::GradMode::is_enabled();
    if (passes && passed == at) {
      if (!by_signal) throw Killed();
      std::raise(SIGTERM);
    }
    ++(passes ? passed : trained);
    return Normed::training_step(batch, batch_idx);
  }
};

std::map<std::string, Tensor> recomputed(const Averaged& run) {
  std::map<std::string, Tensor> all;
  const StateTree state = run.callback->state();
  for (const auto& [name, value] : state.at("recomputed").as_map()) all[name] = value.tensor();
  return all;
}

}  // namespace

TEST_CASE("WeightAveraging: a failure while the statistics are recomputed loses no training") {
  // In the middle of an epoch, and at its end.
  const int64_t steps = GENERATE(44, 50);
  CAPTURE(steps);
  ModelCheckpoint::Options saving;
  saving.every_n_epochs = 100;
  const Change limit = [&](TrainerOptions& o, TrainerComponents&) { o.max_steps = steps; };
  const TemporaryFolder quiet_folder, folder;
  const Averaged quiet_run = train(quiet_folder, swa(), {.saving = saving, .module = seeded<EndingInPass>()}, limit);
  const auto failing = seeded<EndingInPass>();
  failing->at = 3;
  train(folder, swa(), {.saving = saving, .module = failing}, limit);
  REQUIRE(failing->passed == 3);
  const auto module = seeded<EndingInPass>();
  const Averaged resumed = train(folder, swa(), {.from = "auto", .saving = saving, .module = module}, limit);
  CHECK(module->trained == 0);
  CHECK(module->passed == 10);
  CHECK(same_weights(weights(*resumed.module), weights(*quiet_run.module)));
  CHECK(same_weights(resumed.averages(), quiet_run.averages()));
  CHECK(recomputed(resumed).size() == 3);
  CHECK(same_weights(recomputed(resumed), recomputed(quiet_run)));
}

namespace {

/// Has a schedule of epochs, so the last batches of a fit have the rates of swa_lrs.
struct Scheduled : EndingInPass {
  OptimizerPlan configure_optimizers() override {
    StepLR::Options halving;
    halving.step_size = 1;
    halving.gamma = 0.5;
    return {std::make_shared<SGD>(SGD::Options{.lr = 0.05, .momentum = 0.9}),
            SchedulerConfig{.scheduler = std::make_shared<StepLR>(halving)}};
  }
};

void list_values(const StateTree& tree, const std::string& name, std::map<std::string, StateTree>& values) {
  if (tree.is_map()) {
    for (const auto& [key, value] : tree.as_map()) list_values(value, name.empty() ? key : cat(name, "/", key), values);
  } else if (tree.is_list()) {
    size_t index = 0;
    for (const StateTree& value : tree.as_list()) list_values(value, cat(name, "/", index++), values);
  } else {
    values[name] = tree;
  }
}

bool same_value(const StateTree& a, const StateTree& b) {
  if (a.variant().index() != b.variant().index()) return false;
  if (a.is_tensor()) return a.tensor().scalar_type() == b.tensor().scalar_type() && a.tensor().equal(b.tensor());
  if (a.holds<std::string>()) return a.as_string() == b.as_string();
  if (a.holds<bool>()) return a.as_bool() == b.as_bool();
  if (a.holds<double>()) return std::bit_cast<uint64_t>(a.as_double()) == std::bit_cast<uint64_t>(b.as_double());
  return a.is_null() || a.as_int() == b.as_int();
}

/// The values of a checkpoint that training determines: without times, paths and lengths of files.
std::map<std::string, StateTree> trained_values(const std::filesystem::path& checkpoint) {
  const CheckpointContent content = read_checkpoint(checkpoint);
  std::map<std::string, StateTree> values;
  list_values(content.state, "", values);
  list_values(content.optimizers, "optimizers", values);
  std::erase_if(values, [](const auto& item) {
    for (const char* other : {"checkpoints", "loggers", "config", "callbacks/ModelCheckpoint"})
      if (item.first.starts_with(other)) return true;
    return item.first.ends_with("fit_time_s");
  });
  return values;
}

}  // namespace

TEST_CASE(
    "WeightAveraging: the last checkpoint of a run that is killed in the pass and resumed is that of a quiet one") {
  // In the middle of an epoch, where the schedule did not have the last word, and at its end.
  const int64_t steps = GENERATE(44, 50);
  CAPTURE(steps);
  ModelCheckpoint::Options saving;
  // A checkpoint of the last step, from which the run repeats the pass alone.
  saving.every_n_train_steps = steps;
  const Change limit = [&](TrainerOptions& o, TrainerComponents&) { o.max_steps = steps; };
  const TemporaryFolder quiet_folder, folder;
  const Averaged quiet_run = train(quiet_folder, swa(), {.saving = saving, .module = seeded<Scheduled>()}, limit);
  const auto failing = seeded<Scheduled>();
  failing->at = 3;
  train(folder, swa(), {.saving = saving, .module = failing}, limit);
  REQUIRE(failing->passed == 3);
  const Averaged resumed =
      train(folder, swa(), {.from = "auto", .saving = saving, .module = seeded<Scheduled>()}, limit);
  REQUIRE(resumed.report.last_checkpoint->filename() == quiet_run.report.last_checkpoint->filename());
  REQUIRE(resumed.report.last_checkpoint->string().ends_with("-averaged.ckpt"));
  const auto quiet_values = trained_values(*quiet_run.report.last_checkpoint);
  const auto values = trained_values(*resumed.report.last_checkpoint);
  REQUIRE(quiet_values.contains("optimizers/0/groups/0/lr"));
  std::vector<std::string> different;
  for (const auto& [name, value] : quiet_values)
    if (!values.contains(name) || !same_value(values.at(name), value)) different.push_back(name);
  for (const auto& [name, value] : values)
    if (!quiet_values.contains(name)) different.push_back(name);
  CHECK(join(different) == "");
  const double rate = quiet_values.at("optimizers/0/groups/0/lr").as_double();
  CHECK((rate == Approx(0.01)) == (steps == 44));
}

TEST_CASE("WeightAveraging: a signal ends the pass that recomputes the statistics, and a resume repeats it") {
  const TemporaryFolder quiet_folder, folder;
  const Averaged quiet_run = train(quiet_folder, swa(), {.module = seeded<EndingInPass>()});
  const auto stopped = seeded<EndingInPass>();
  stopped->at = 3;
  stopped->by_signal = true;
  const Averaged part = train(folder, swa(), {.module = stopped});
  CHECK(part.report.exit_code == ExitCode::preempted);
  CHECK(stopped->passed == 4);
  CHECK(recomputed(part).empty());
  CHECK(same_weights(weights(*part.module), weights(*quiet_run.module)));
  const auto module = seeded<EndingInPass>();
  const Averaged resumed = train(folder, swa(), {.from = "auto", .module = module});
  CHECK(module->trained == 0);
  CHECK(same_weights(recomputed(resumed), recomputed(quiet_run)));
  CHECK(same_weights(weights(*resumed.module), weights(*quiet_run.module)));
}

TEST_CASE("WeightAveraging: the pass over a stream without an end reads as many batches as were trained") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_steps = 8;
  TrainerComponents components;
  const auto averaging = std::make_shared<WeightAveraging>(
      Options{.kind = AveragingKind::swa, .start = length("0st"), .every = length("1st"), .copy_at_end = false});
  components.add(averaging);
  const auto module = seeded<EndingInPass>();
  // Not read to its end: the pass would last for days.
  Trainer(options, components).fit(module, DataSource(regression_stream(int64_t{1} << 40)));
  CHECK(module->trained == 8);
  CHECK(module->passed == 8);
  const StateTree state = averaging->state();
  CHECK(state.at("recomputed").at("norm.num_batches_tracked").tensor().item<int64_t>() == 8);
}

TEST_CASE("WeightAveraging: the pass that recomputes the statistics reads batches as callbacks shape them") {
  /// Keeps two rows of four.
  struct Halves : Callback, ShapesBatches {
    Batch shape_batch(RunContext&, Batch batch) override { return batch.narrow(0, 2); }
  };
  // A filter that passes the last training batch, and one that does not.
  const bool is_due = GENERATE(true, false);
  CAPTURE(is_due);
  const auto callback = std::make_shared<Halves>();
  CallbackFilter filter;
  if (is_due)
    filter.from = length("5ep");
  else
    filter.until = length("5ep");
  callback->set_common_options(filter);
  const TemporaryFolder folder, resumed_folder;
  const auto data = regression_data(40, 8, 4, /*shuffle=*/false);
  Options options = swa();
  options.copy_at_end = true;
  const Change shaped = [&](TrainerOptions&, TrainerComponents& components) { components.add(callback); };
  const Averaged run = train(folder, options, {.module = seeded<Normed>(), .data = data}, shaped);
  // The input of this layer does not depend on weights: means of batches and of their variances.
  const Tensor x = regression(40, 1)[0].view({10, 4, 4}).narrow(1, 0, is_due ? 2 : 4);
  const auto module = std::dynamic_pointer_cast<Normed>(run.module);
  CHECK(module->norm->running_mean.allclose(x.mean(1).mean(0), 1e-5, 1e-6));
  CHECK(module->norm->running_var.allclose(x.var(1, /*unbiased=*/true).mean(0), 1e-5, 1e-6));
  // Also in a run that is resumed for this pass only.
  const auto failing = seeded<EndingInPass>();
  failing->at = 3;
  train(resumed_folder, options, {.module = failing, .data = data}, shaped);
  const auto again = seeded<EndingInPass>();
  const Averaged resumed = train(resumed_folder, options, {.from = "auto", .module = again, .data = data}, shaped);
  CHECK(again->trained == 0);
  CHECK(same_weights(recomputed(resumed), recomputed(run)));
}

TEST_CASE("WeightAveraging: batch norms cannot be updated with manual optimization") {
  struct Manual : Normed {
    bool automatic_optimization() const override { return false; }
  };
  const TemporaryFolder folder;
  CHECK_THAT(message_of<ConfigError>([&] { train(folder, swa(), {.module = seeded<Manual>()}); }),
             ContainsSubstring("the module uses manual optimization"));
}

TEST_CASE("WeightAveraging: swa_lrs must fit the parameter groups") {
  Options options = swa();
  options.swa_lrs = {0.01, 0.02};
  const TemporaryFolder folder;
  CHECK_THAT(message_of<ConfigError>([&] { train(folder, options); }), ContainsSubstring("got 2 for 1 group"));
}

}  // namespace averaged_runs_test
