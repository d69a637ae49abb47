#include "fulgur/callbacks/early_stopping.h"

#include "callbacks/scored.h"
#include "fulgur/strategies/single_device.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>

#include "support/expect_error.h"
#include "support/fake_run_context.h"
#include "support/texts_of_one.h"

namespace early_stopping_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Reason = EarlyStoppingReason;

EarlyStopping::Options watch_score() {
  EarlyStopping::Options options;
  options.monitor = "score";
  return options;
}

struct Stopped {
  FitReport report;
  std::shared_ptr<EarlyStopping> callback;
};

// Two steps an epoch, one score an epoch.
Stopped train(EarlyStopping::Options options, std::vector<double> scores,
              const std::function<void(TrainerOptions&)>& change = {}, TrainerComponents components = {},
              const CheckpointChoice& from = {}, bool in_training = false) {
  TemporaryFolder folder;
  TrainerOptions trainer_options = quiet(folder);
  trainer_options.max_epochs = static_cast<int64_t>(scores.size());
  trainer_options.enable_model_summary = false;
  if (change) change(trainer_options);
  Stopped run{.report = {}, .callback = std::make_shared<EarlyStopping>(options)};
  components.add(run.callback);
  run.report = Trainer(trainer_options, components)
                   .fit(std::make_shared<Scored>(scores, in_training), regression_data(8, 4), from);
  return run;
}

// One rank of two, without the other: `any` answers for it.
class HalfOfTwo : public Strategy {
 public:
  struct OtherDecides : test::TextsOfOne {
    bool other = false;
    int64_t own_rank = 0;
    int64_t rank() const override { return own_rank; }
    int64_t world_size() const override { return 2; }
    Tensor all_reduce(const Tensor& value, ReduceOp) override { return value; }
    std::vector<Tensor> all_gather(const Tensor& value, bool) override { return {value, value}; }
    Tensor broadcast(const Tensor& value, int64_t) override { return value; }
    bool any(bool value) override { return value || other; }
    void barrier(std::string_view) override {}
  };
  HalfOfTwo(int64_t rank, bool other) {
    collectives_.own_rank = rank;
    collectives_.other = other;
  }
  std::string name() const override { return "half_of_two"; }
  void configure(StrategySetup setup) override { inner_.configure(std::move(setup)); }
  at::Device device() const override { return inner_.device(); }
  int64_t rank() const override { return collectives_.own_rank; }
  int64_t world_size() const override { return 2; }
  Collectives& collectives() override { return collectives_; }
  Precision& precision() override { return inner_.precision(); }
  void attach(LightningModule& module) override { inner_.attach(module); }
  void batch_to_device(LightningModule& module, DataModule* data, Batch& batch, int64_t loader_idx) override {
    inner_.batch_to_device(module, data, batch, loader_idx);
  }
  void backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) override {
    inner_.backward(module, loss, sync, options);
  }
  void optimizer_step(Optimizer& optimizer, const Closure& closure, const std::optional<Tensor>& found_inf) override {
    inner_.optimizer_step(optimizer, closure, found_inf);
  }

 private:
  SingleDeviceStrategy inner_;
  OtherDecides collectives_;
};

}  // namespace

TEST_CASE("EarlyStopping: patience counts checks without an improvement") {
  const Stopped run = train(watch_score(), {3, 2, 2.5, 2.4, 2.3, 1, 0});
  CHECK(run.report.epochs == 5);
  CHECK(run.report.stop_reason == "EarlyStopping: score did not improve in the last 3 checks; best is 2.0");
  CHECK(run.callback->stopped_epoch() == 4);
  CHECK(run.callback->best_score() == 2);
  CHECK(run.callback->wait_count() == 3);
  CHECK(run.callback->stopping_reason() == Reason::patience_exhausted);
  CHECK(run.callback->stopping_reason_message() == "score did not improve in the last 3 checks; best is 2.0");

  EarlyStopping::Options options = watch_score();
  options.patience = 1;
  CHECK(train(options, {3, 2, 2.5, 1}).report.epochs == 3);
  options.patience = 0;
  CHECK(train(options, {3, 2, 2.5, 1}).report.epochs == 3);
  options.patience = 10;
  const Stopped whole = train(options, {3, 2, 2.5, 2.4});
  CHECK(whole.report.stop_reason == "max_epochs");
  CHECK(whole.callback->stopping_reason() == Reason::not_stopped);
  CHECK(whole.callback->stopping_reason_message().empty());
}

TEST_CASE("EarlyStopping: mode and min_delta say what an improvement is") {
  EarlyStopping::Options options = watch_score();
  options.patience = 2;
  const std::vector<double> rising{1, 2, 3, 4};
  CHECK(train(options, rising).report.epochs == 3);
  options.mode = MonitorMode::max;
  CHECK(train(options, rising).report.epochs == 4);
  options.min_delta = 1.5;  // 2 is none, 3 is one
  const Stopped coarse = train(options, rising);
  CHECK(coarse.report.epochs == 4);
  CHECK(coarse.callback->best_score() == 3);
  CHECK(coarse.callback->wait_count() == 1);
  options.min_delta = 1;  // a change of exactly that is none
  CHECK(train(options, {1, 2, 2, 2}).report.epochs == 3);
  options.mode = MonitorMode::min;
  CHECK(train(options, {3, 2, 2, 1}).report.epochs == 3);
  options.min_delta = 0.5;
  CHECK(train(options, {3, 2, 1, 0}).report.epochs == 4);
}

TEST_CASE("EarlyStopping: thresholds and values that are not finite stop at once") {
  EarlyStopping::Options options = watch_score();
  options.stopping_threshold = 0.5;
  const Stopped good = train(options, {3, 0.5, 0.4, 0.1});
  CHECK(good.report.epochs == 3);
  CHECK(good.callback->stopping_reason() == Reason::stopping_threshold);
  CHECK(good.report.stop_reason == "EarlyStopping: score is 0.4, better than the threshold 0.5");
  options = watch_score();
  options.divergence_threshold = 10;
  const Stopped bad = train(options, {3, 10, 11, 1});
  CHECK(bad.report.epochs == 3);
  CHECK(bad.callback->stopping_reason() == Reason::divergence_threshold);
  options.mode = MonitorMode::max;
  options.divergence_threshold = -1;
  CHECK(train(options, {3, -1, -2, 1}).callback->stopped_epoch() == 2);

  options = watch_score();
  for (const double value : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    const Stopped broken = train(options, {3, value, 1});
    CHECK(broken.report.epochs == 2);
    CHECK(broken.callback->stopping_reason() == Reason::non_finite_metric);
    CHECK_THAT(broken.report.stop_reason, ContainsSubstring("score is not finite"));
  }
  options.check_finite = false;
  const Stopped on = train(options, {3, NAN, 1});
  CHECK(on.report.epochs == 3);
  CHECK(on.callback->best_score() == 1);
}

TEST_CASE("EarlyStopping: a metric that is missing is an error, or with strict false a warning") {
  EarlyStopping::Options options = watch_score();
  options.monitor = "scroe";
  const std::string message = message_of<ConfigError>([&] { train(options, {1, 2}); });
  CHECK_THAT(message, ContainsSubstring("monitor 'scroe' was not logged; the logged metrics are: ") &&
                          ContainsSubstring("score") && ContainsSubstring("did you mean 'score'") &&
                          ContainsSubstring("strict: false"));
  options.strict = false;
  LogLines log;
  CHECK(train(options, {1, 2, 3, 4, 5}).report.epochs == 5);
  CHECK(log.count("[early_stopping.monitor_missing]") == 1);
  options.monitor = "";
  CHECK_THROWS_AS(EarlyStopping(options), ConfigError);
}

TEST_CASE("EarlyStopping: when it checks") {
  EarlyStopping::Options options = watch_score();
  options.patience = 2;
  const std::vector<double> flat(8, 1.0);
  // Two validations an epoch: the default is to check after each.
  const auto twice = [](TrainerOptions& o) { o.val_check_interval = 0.5; };
  CHECK(train(options, flat, twice).report.global_step == 3);
  options.check_on_train_epoch_end = true;
  CHECK(train(options, flat, twice).report.epochs == 3);
  options.check_on_train_epoch_end = false;
  CHECK(train(options, flat).report.epochs == 3);
  // Every second epoch.
  options.check_on_train_epoch_end.reset();
  CHECK(train(options, flat, [](TrainerOptions& o) { o.check_val_every_n_epoch = 2; }).report.epochs == 6);
  // Without validation: at the epoch's end, whose values the module has logged.
  const auto no_validation = [](TrainerOptions& o) { o.limit_val_batches = 0; };
  CHECK(train(options, flat, no_validation, {}, {}, true).report.epochs == 3);
  options.check_on_train_epoch_end = false;
  LogLines log;
  CHECK(train(options, flat, no_validation, {}, {}, true).report.epochs == 8);
  CHECK(log.count("[early_stopping.never_checks]") == 1);
}

TEST_CASE("EarlyStopping: a fit in which its filter selects no check says so") {
  // Two steps an epoch, three epochs.
  const auto lines_of = [](const char* every, const char* from, const char* id) {
    const auto filtered = std::make_shared<EarlyStopping>([] {
      EarlyStopping::Options options = watch_score();
      options.mode = MonitorMode::max;
      return options;
    }());
    CallbackFilter filter;
    if (every) filter.every = Interval::parse(every);
    if (from) filter.from = Interval::parse(from);
    filtered->set_common_options(filter);
    TrainerComponents components;
    components.add(filtered);
    const LogLines lines;
    CHECK(train(watch_score(), {3, 2, 1}, {}, components).report.epochs == 3);
    return lines.count(id);
  };
  CHECK(lines_of("5st", nullptr, "its filter (every: 5st) selects no end of a training epoch") == 1);
  CHECK(lines_of("5st", nullptr, "[early_stopping.never_checks]") == 1);
  CHECK(lines_of("2st", nullptr, "[early_stopping.never_checks]") == 0);
  CHECK(lines_of(nullptr, "90st", "[early_stopping.never_checks]") == 0);
  CHECK(lines_of(nullptr, "90st", "(from: 90st)") == 1);
}

TEST_CASE("EarlyStopping does nothing in the sanity check, a trial run and outside fit") {
  EarlyStopping::Options options = watch_score();
  // The sanity check logs a score that nothing improves on.
  const Stopped run = train(options, {3, 2, 1}, [](TrainerOptions& o) { o.num_sanity_val_steps = 1; });
  CHECK(run.report.epochs == 3);
  CHECK(run.callback->best_score() == 1);
  options.check_on_train_epoch_end = false;
  options.monitor = "missing";
  CHECK_NOTHROW(train(options, {1, 1}, [](TrainerOptions& o) { o.fast_dev_run.batches = 1; }));
  TemporaryFolder folder;
  TrainerComponents components;
  components.add(std::make_shared<EarlyStopping>(options));
  Trainer trainer(quiet(folder), components);
  CHECK_NOTHROW(trainer.validate(std::make_shared<Scored>(std::vector<double>{1}), regression_data(8, 4)));
}

TEST_CASE("EarlyStopping: verbose prints improvements and the stop") {
  EarlyStopping::Options options = watch_score();
  options.patience = 1;
  {
    LogLines log;
    train(options, {3, 2, 2});
    CHECK(log.count("EarlyStopping: score") == 1);  // the Trainer says why it stopped
  }
  options.verbose = true;
  LogLines log;
  train(options, {3, 2, 2});
  CHECK(log.count("EarlyStopping: score is 3.0, the first value") == 1);
  CHECK(log.count("EarlyStopping: score improved from 3.0 to 2.0") == 1);
  CHECK(log.count("EarlyStopping: score did not improve in the last 1 check; best is 2.0") == 2);
}

TEST_CASE("EarlyStopping: a stop on one rank is a stop on all, and log_rank_zero_only silences the others") {
  const auto lines_of = [](int64_t rank, bool zero_only) {
    EarlyStopping::Options options = watch_score();
    options.verbose = true;
    options.log_rank_zero_only = zero_only;
    TrainerComponents components;
    components.strategy = std::make_shared<HalfOfTwo>(rank, false);
    LogLines log;
    // Rank 0, which would choose the run's folder, is not there.
    train(
        options, {3, 2}, [](TrainerOptions& o) { o.enable_checkpointing = false; }, components);
    return log.count(cat("[rank ", rank, "] EarlyStopping: score improved"));
  };
  CHECK(lines_of(0, false) == 1);
  CHECK(lines_of(0, true) == 1);
  CHECK(lines_of(1, false) == 1);
  CHECK(lines_of(1, true) == 0);
  TrainerComponents components;
  components.strategy = std::make_shared<HalfOfTwo>(0, true);
  const Stopped run = train(watch_score(), {3, 2, 1}, {}, components);
  CHECK(run.report.epochs == 1);
  CHECK(run.report.stop_reason == "EarlyStopping: score, by the decision of another rank");
  CHECK(run.callback->stopping_reason() == Reason::not_stopped);
}

TEST_CASE("EarlyStopping waits for min_epochs, and continues counting after a resume") {
  EarlyStopping::Options options = watch_score();
  options.patience = 1;
  CHECK(train(options, {3, 3, 3, 3}, [](TrainerOptions& o) { o.min_epochs = 3; }).report.epochs == 3);

  options.patience = 3;
  const std::vector<double> scores{1, 2, 3, 4, 5, 6};
  TemporaryFolder folder;
  const auto here = [&](std::optional<int64_t> epochs) {
    return [&folder, epochs](TrainerOptions& o) {
      o.default_root_dir = folder.path();
      o.max_epochs = epochs.value_or(6);
    };
  };
  const Stopped first = train(options, scores, here(2));
  REQUIRE(first.report.last_checkpoint);
  const Stopped second = train(options, scores, here({}), {}, first.report.last_checkpoint->string());
  CHECK(second.report.epochs == 4);
  CHECK(second.callback->best_score() == 1);
  CHECK(second.callback->wait_count() == 3);
  CHECK(second.report.stop_reason == train(options, scores).report.stop_reason);
}

TEST_CASE("EarlyStopping: a second fit with the same object begins again") {
  EarlyStopping::Options options = watch_score();
  options.patience = 2;
  TemporaryFolder folder;
  TrainerOptions trainer_options = quiet(folder);
  trainer_options.max_epochs = 5;
  auto callback = std::make_shared<EarlyStopping>(options);
  TrainerComponents components;
  components.add(callback);
  Trainer trainer(trainer_options, components);
  CHECK(trainer.fit(std::make_shared<Scored>(std::vector<double>{1, 1, 1, 1, 1}), regression_data(8, 4)).epochs == 3);
  CHECK(trainer.fit(std::make_shared<Scored>(std::vector<double>{5, 4, 4, 3, 2}), regression_data(8, 4)).epochs == 5);
  CHECK(callback->best_score() == 2);
  CHECK(callback->stopping_reason() == Reason::not_stopped);
  trainer.validate(std::make_shared<Scored>(std::vector<double>{1}), regression_data(8, 4));
  CHECK(callback->best_score() == 2);  // still reported after other runs
}

TEST_CASE("EarlyStopping: its state survives a checkpoint before the first check") {
  const EarlyStopping fresh(watch_score());
  EarlyStopping loaded(watch_score());
  loaded.load_state(fresh.state());
  CHECK(std::isinf(loaded.best_score()));
}

TEST_CASE("EarlyStopping: which hook checks follows from when the run validates") {
  struct Case {
    bool validates, at_epoch_ends;
    std::optional<bool> on_train_epoch_end;
    std::string checks;  // E: at the end of the training epoch, V: of validation
  };
  const std::vector<Case> cases{
      {true, true, {}, "E"},    {true, false, {}, "V"},   {false, false, {}, "E"},
      {true, true, false, "V"}, {true, false, true, "E"}, {false, false, false, "V"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.validates, c.at_epoch_ends, c.checks);
    FakeRunContext run;
    run.validates = c.validates;
    run.validates_at_epoch_ends = c.at_epoch_ends;
    run.metrics["score"] = 1;
    EarlyStopping::Options options = watch_score();
    options.check_on_train_epoch_end = c.on_train_epoch_end;
    EarlyStopping at_epoch_end(options), at_validation_end(options);
    at_epoch_end.on_train_epoch_end(run);
    at_validation_end.on_validation_end(run);
    CHECK(at_epoch_end.best_score() == (c.checks == "E" ? 1 : INFINITY));
    CHECK(at_validation_end.best_score() == (c.checks == "V" ? 1 : INFINITY));
  }
}

TEST_CASE("EarlyStopping: runs in which it does not check") {
  FakeRunContext run;
  run.metrics["score"] = 1;
  EarlyStopping callback(watch_score());
  const auto checks = [&] {
    callback.setup(run, TrainerFn::fit);
    callback.on_train_epoch_end(run);
    return callback.best_score() == 1;
  };
  CHECK(checks());
  run.is_sanity_check = true;
  CHECK_FALSE(checks());
  run.is_sanity_check = false;
  run.is_fast_dev_run = true;
  CHECK_FALSE(checks());
  run.is_fast_dev_run = false;
  run.function = TrainerFn::validate;
  CHECK_FALSE(checks());
}

TEST_CASE("EarlyStopping: what it says and keeps, epoch by epoch") {
  FakeRunContext run;
  EarlyStopping::Options options = watch_score();
  options.patience = 2;
  auto callback = std::make_unique<EarlyStopping>(options);
  const auto epoch = [&](double score) {
    // Each epoch is that of a run resumed from the one before.
    const StateTree state = callback->state();
    callback = std::make_unique<EarlyStopping>(options);
    callback->setup(run, TrainerFn::fit);
    callback->load_state(state);
    run.metrics["score"] = score;
    callback->on_train_epoch_end(run);
    ++run.now.epoch;
  };
  for (const double score : {3.0, 2.0, 2.5}) epoch(score);
  CHECK_FALSE(run.stop_reason);
  CHECK(callback->state().at("best_score").as_double() == 2);
  CHECK(callback->state().at("wait_count").as_int() == 1);
  CHECK(callback->state().at("stopped_epoch").as_int() == 0);
  epoch(2);
  CHECK(run.stop_reason == "EarlyStopping: score did not improve in the last 2 checks; best is 2.0");
  CHECK(callback->state().at("wait_count").as_int() == 2);
  CHECK(callback->state().at("stopped_epoch").as_int() == 3);
  CHECK(callback->state().as_map().size() == 3);
}

TEST_CASE("EarlyStopping: a state without one of its numbers changes nothing") {
  EarlyStopping callback(watch_score());
  StateTree state = StateTree::map({{"wait_count", 2}, {"stopped_epoch", 4}});
  CHECK_THAT(message_of<CheckpointError>([&] { callback.load_state(state); }), ContainsSubstring("best_score"));
  CHECK(callback.wait_count() == 0);
  CHECK(callback.stopped_epoch() == 0);
}

}  // namespace early_stopping_test
