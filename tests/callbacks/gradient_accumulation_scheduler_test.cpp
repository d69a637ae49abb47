#include "fulgur/callbacks/gradient_accumulation_scheduler.h"

#include "fulgur/core/text/text.h"
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "callbacks/scored.h"
#include "support/expect_error.h"

namespace gradient_accumulation_scheduler_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Scheduling = std::map<std::string, int64_t>;

struct Counting : SelfPlanned {
  std::optional<int64_t> num_tokens(const Batch& batch) const override { return batch.size() * 3; }
};

struct Trained {
  FitReport report;
  std::map<std::string, Tensor> weights;
};

// Epochs of ten batches of four.
template <class Module = Counting>
Trained train(const Scheduling& scheduling, const std::function<void(TrainerOptions&)>& change,
              const CheckpointChoice& from = {}, const CallbackFilter& filter = {}) {
  static TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.limit_val_batches = 0;
  change(options);
  TrainerComponents components;
  components.seed = 3;
  components.add(std::make_shared<GradientAccumulationScheduler>(
      GradientAccumulationScheduler::Options{.scheduling = scheduling}));
  components.callbacks.back()->set_common_options(filter);
  at::manual_seed(4);
  auto module = std::make_shared<Module>();
  Trained run;
  run.report = Trainer(options, components).fit(module, regression_data(), from);
  run.weights = weights(*module);
  return run;
}

int64_t steps(const Scheduling& scheduling, int64_t epochs) {
  return train(scheduling, [&](TrainerOptions& o) { o.max_epochs = epochs; }).report.global_step;
}

}  // namespace

TEST_CASE("GradientAccumulationScheduler: batches of a step by epoch") {
  CHECK(steps({{"0", 5}}, 1) == 2);
  CHECK(steps({{"1", 2}, {"2", 5}}, 3) == 10 + 5 + 2);
  CHECK(steps({{"10", 2}}, 1) == 10);
  CHECK(steps({{"1ep", 2}}, 2) == 10 + 5);
  CHECK(steps({{"0.5ep", 5}}, 1) == 5 + 1);
}

TEST_CASE("GradientAccumulationScheduler: positions that the fit did not reach are reported") {
  const auto reports = [](const Scheduling& scheduling, const char* text) {
    const LogLines lines;
    steps(scheduling, 2);
    CHECK(lines.count(text) == 1);
    return lines.count("[gradient_accumulation_scheduler.not_reached]");
  };
  CHECK(reports({{"1", 2}, {"4", 5}}, "after 15 steps in 2 epochs, before the batches per step became 5 (at 4ep)") ==
        1);
  CHECK(reports({{"12st", 2}, {"90st", 4}}, "before the batches per step became 4 (at 90st)") == 1);
  CHECK(reports({{"1", 2}}, "stopped: ") == 0);
}

TEST_CASE("GradientAccumulationScheduler: by intervals of any unit") {
  CHECK(steps({{"10st", 2}}, 2) == 10 + 5);
  CHECK(steps({{"4st", 3}}, 1) == 4 + 2);
  CHECK(steps({{"20sa", 2}}, 1) == 5 + 3);  // five batches of one, then windows of 2, 2 and 1
  CHECK(steps({{"60tok", 2}}, 1) == 5 + 3);
  CHECK(steps({{"0s", 2}}, 1) == 5);
  CHECK(steps({{"1000h", 2}}, 1) == 10);
  CHECK(steps({{"0.5dur", 2}}, 2) == 10 + 5);
  // The position of the run does not depend on the factors: 0.75 is reached in the fourth epoch, not in the third.
  CHECK(steps({{"0.5dur", 2}, {"0.75dur", 5}}, 4) == 10 + 10 + 5 + 2);
  CHECK(train({{"0.5dur", 2}}, [](TrainerOptions& o) {
          o.max_epochs.reset();
          o.max_steps = 20;
        }).report.epochs == 3);  // ten steps of one batch, ten of two
}

TEST_CASE("GradientAccumulationScheduler: a resumed fit continues with the factor of its position") {
  const Scheduling scheduling{{"1", 2}, {"2", 5}};
  const auto whole = train(scheduling, [](TrainerOptions& o) { o.max_epochs = 3; });
  for (const int64_t stop : {4, 10, 12, 15, 16}) {
    CAPTURE(stop);
    const auto first = train(scheduling, [&](TrainerOptions& o) { o.max_epochs = 3, o.max_steps = stop; });
    REQUIRE(first.report.global_step == stop);
    const auto second = train(
        scheduling, [](TrainerOptions& o) { o.max_epochs = 3; }, first.report.last_checkpoint->string());
    CHECK(second.report.global_step == whole.report.global_step);
    CHECK(same_weights(second.weights, whole.weights));
  }
}

TEST_CASE("GradientAccumulationScheduler: a resume outside of its filter keeps the factor of the checkpoint") {
  const Scheduling scheduling{{"2", 5}};
  CallbackFilter filter;
  filter.until = Interval::parse("2ep");
  const auto five = [](TrainerOptions& o) { o.max_epochs = 5; };
  const auto whole = train(scheduling, five, {}, filter);
  CHECK(whole.report.global_step == 50);
  for (const int64_t stop : {20, 30, 35}) {
    CAPTURE(stop);
    const auto first = train(
        scheduling, [&](TrainerOptions& o) { o.max_epochs = 5, o.max_steps = stop; }, {}, filter);
    REQUIRE(first.report.global_step == stop);
    const auto second = train(scheduling, five, first.report.last_checkpoint->string(), filter);
    CHECK(second.report.global_step == 50);
    CHECK(same_weights(second.weights, whole.weights));
  }
}

TEST_CASE("GradientAccumulationScheduler: invalid options are errors") {
  const auto error = [](const Scheduling& scheduling) {
    return message_of<ConfigError>([&] { GradientAccumulationScheduler({.scheduling = scheduling}); });
  };
  CHECK_THAT(error({}), ContainsSubstring("must not be empty"));
  CHECK_THAT(error({{"4", 0}}), ContainsSubstring("a factor must be at least 1; got 0 at '4'"));
  for (const char* key : {"-1", "four", "4.5", "", "4 ep"})
    CHECK_THAT(error({{key, 2}}), ContainsSubstring(cat("got '", key, "'")));
  CHECK_THAT(error({{"4", 2}, {"500st", 4}}), ContainsSubstring("must be in the same unit; got '4' and '500st'"));
  CHECK_THAT(error({{"4", 2}, {"4ep", 4}}), ContainsSubstring("occurs twice in scheduling: 4ep"));

  const auto run_error = [](const Scheduling& scheduling, const std::function<void(TrainerOptions&)>& change) {
    return message_of<ConfigError>([&] { train(scheduling, change); });
  };
  CHECK_THAT(run_error({{"4", 2}}, [](TrainerOptions& o) { o.accumulate_grad_batches = 3; }),
             ContainsSubstring("accumulate_grad_batches is 3"));
  CHECK_THAT(run_error({{"0.5dur", 2}}, [](TrainerOptions& o) { o.max_epochs = -1; }),
             ContainsSubstring("whose length is not known"));
  struct Manual : SelfPlanned {
    bool automatic_optimization() const override { return false; }
  };
  CHECK_THAT(message_of<ConfigError>([] {
               train<Manual>({{"0", 2}}, [](TrainerOptions&) {});
             }),
             ContainsSubstring("manual optimization"));
  struct NoTokens : SelfPlanned {};
  CHECK_THAT(message_of<ConfigError>([] {
               train<NoTokens>({{"5tok", 2}}, [](TrainerOptions&) {});
             }),
             ContainsSubstring("num_tokens"));
}

TEST_CASE("GradientAccumulationScheduler: factor_at") {
  const GradientAccumulationScheduler scheduler({.scheduling = {{"4", 2}, {"10", 8}, {"2", 3}}});
  CHECK(scheduler.factor_at(0) == 1);
  CHECK(scheduler.factor_at(2) == 3);
  CHECK(scheduler.factor_at(3.9) == 3);
  CHECK(scheduler.factor_at(4) == 2);
  CHECK(scheduler.factor_at(100) == 8);
}

}  // namespace gradient_accumulation_scheduler_test
