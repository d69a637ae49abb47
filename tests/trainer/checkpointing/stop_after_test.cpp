// trainer.stop_after ends a fit in the middle of its run, which a resume continues as if it had not ended.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <csignal>

#include "fulgur/core/text/errors.h"
#include "fulgur/loggers/csv_logger.h"
#include "fulgur/optim/cyclic_schedules.h"
#include "fulgur/trainer/config.h"
#include "trainer/boring.h"

namespace stop_after_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

constexpr Interval::Unit kEpochs = Interval::Unit::epochs, kSteps = Interval::Unit::steps;

/// Its learning rates depend on the length of the whole run.
struct OneCycle : BoringModule {
  OneCycle() : BoringModule(0.3) {}
  OptimizerPlan configure_optimizers() override {
    return {std::make_shared<SGD>(SGD::Options{.lr = 0.05, .momentum = 0.9}),
            SchedulerConfig{.scheduler = std::make_shared<OneCycleLR>(OneCycleLR::Options{.max_lr = 0.1}),
                            .interval = ScheduleInterval::step}};
  }
};

struct Seen : Callback {
  int train_ends = 0, validations = 0;
  std::vector<int> signals;
  void on_train_end(RunContext&) override { ++train_ends; }
  void on_validation_end(RunContext&) override { ++validations; }
  void on_exception(RunContext&, const std::exception& error) override {
    if (const auto* interrupted = dynamic_cast<const Interrupted*>(&error)) signals.push_back(interrupted->signal());
  }
};

struct Part {
  FitReport report;
  std::map<std::string, Tensor> weights;
  Seen seen;
};

Part part(const TemporaryFolder& folder, std::optional<Interval> stop_after) {
  TrainerOptions options = quiet(folder);
  options.max_epochs = 4;
  options.stop_after = stop_after;
  options.num_threads = Auto<int64_t>{1};
  TrainerComponents components;
  components.seed = 5;
  const auto seen = std::make_shared<Seen>();
  components.add(seen);
  at::manual_seed(3);
  const auto module = std::make_shared<OneCycle>();
  Part out;
  out.report = Trainer(options, components).fit(module, regression_data(), "auto");
  out.weights = weights(*module);
  out.seen = *seen;
  return out;
}

}  // namespace

TEST_CASE("stop_after: a fit in parts is the fit in one, bit for bit, with a schedule of the whole run") {
  const TemporaryFolder whole_folder, folder;
  const Part whole = part(whole_folder, std::nullopt);
  const auto [first, epochs, steps] = GENERATE(std::tuple(Interval{1, kEpochs}, int64_t{1}, int64_t{10}),
                                               std::tuple(Interval{13, kSteps}, int64_t{1}, int64_t{13}));
  const Part begun = part(folder, first);
  CHECK(begun.report.exit_code == ExitCode::ok);
  CHECK(begun.report.stop_reason == "stop_after");
  CHECK(begun.report.epochs == epochs);
  CHECK(begun.report.global_step == steps);
  CHECK(begun.seen.train_ends == 0);
  CHECK(begun.seen.validations == epochs);
  CHECK(begun.seen.signals == std::vector<int>{Interrupted::kStopAfter});
  CHECK_FALSE(fs::exists(begun.report.run_dir / "finished.json"));
  CHECK_FALSE(fs::exists(begun.report.run_dir / "failed.json"));
  // The same limit again trains nothing.
  CHECK(part(folder, first).report.global_step == steps);
  CHECK(part(folder, Interval{3, kEpochs}).report.global_step == 30);
  const Part ended = part(folder, std::nullopt);
  CHECK(ended.report.stop_reason == "max_epochs");
  CHECK(ended.report.run_dir == begun.report.run_dir);
  CHECK(same_weights(ended.weights, whole.weights));
  for (const char* log : {"metrics.csv", "metrics.jsonl"}) {
    CAPTURE(log);
    CHECK(read_text(ended.report.run_dir / log) == read_text(whole.report.run_dir / log));
  }
}

TEST_CASE("stop_after: at the end of the run, the run is finished") {
  const TemporaryFolder folder;
  const Part ended = part(folder, Interval{4, kEpochs});
  CHECK(ended.report.stop_reason == "max_epochs");
  CHECK(ended.seen.train_ends == 1);
  CHECK(fs::exists(ended.report.run_dir / "finished.json"));
}

TEST_CASE("stop_after: bad values, and a fit without checkpoints") {
  const TemporaryFolder folder;
  const auto read = [](const std::string& text) {
    Problems problems;
    return config_from_node(parse_yaml("{trainer: " + text + "}", "c.yaml", problems)).trainer;
  };
  CHECK(read("{stop_after: 500st}").stop_after->value == 500);
  CHECK_THROWS_WITH(read("{stop_after: 3min}"), ContainsSubstring("the unit must be one of ep, st"));
  TrainerOptions options = quiet(folder);
  const auto refused = [&](const Interval& length, const char* why) {
    options.stop_after = length;
    CHECK_THROWS_WITH(Trainer(options).fit(std::make_shared<OneCycle>(), regression_data()), ContainsSubstring(why));
  };
  for (const double epochs : {0.0, 1.5}) refused(Interval(epochs, kEpochs), "whole number of epochs or steps");
  refused("3s", "the unit must be one of ep, st");
  options.stop_after = Interval{1, kEpochs};
  options.enable_checkpointing = false;
  CHECK_THROWS_WITH(Trainer(options).fit(std::make_shared<OneCycle>(), regression_data()),
                    ContainsSubstring("[trainer.stop_after]"));
  // A trial of the loops has no checkpoints.
  options.fast_dev_run.batches = 1;
  options.enable_checkpointing = true;
  CHECK(Trainer(options).fit(std::make_shared<OneCycle>(), regression_data()).stop_reason != "stop_after");
}

}  // namespace stop_after_test
