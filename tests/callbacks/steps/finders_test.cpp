// What the finders do in a run; the search before it is tested with the command line (tests/cli).
#include "fulgur/callbacks/finders.h"

#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "support/expect_error.h"

namespace finders_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

FitReport fit_with(std::shared_ptr<Callback> finder, const std::function<void(TrainerOptions&)>& change = {}) {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  if (change) change(options);
  TrainerComponents components;
  components.add(std::move(finder));
  return Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data());
}

}  // namespace

TEST_CASE("LearningRateFinder: a run whose rate was not searched is refused, and one whose rate was found is not") {
  const auto finder = [](std::optional<double> found) {
    return std::make_shared<LearningRateFinder>(LearningRateFinder::Options{.found = found});
  };
  CHECK_THAT(message_of<ConfigError>([&] { fit_with(finder({})); }), ContainsSubstring("LrRangeTest"));
  CHECK(fit_with(finder(0.1)).global_step == 10);
  CHECK(fit_with(finder({}), [](TrainerOptions& options) { options.fast_dev_run.batches = 2; }).global_step == 2);
}

TEST_CASE("BatchSizeFinder: likewise") {
  const auto finder = [](std::optional<int64_t> found) {
    return std::make_shared<BatchSizeFinder>(BatchSizeFinder::Options{.found = found});
  };
  CHECK_THAT(message_of<ConfigError>([&] { fit_with(finder({})); }), ContainsSubstring("BatchSizeSearch"));
  CHECK(fit_with(finder(8)).global_step == 10);
}

TEST_CASE("finders: their options are those of the test and of the search") {
  const LrRangeTest::Options test = LearningRateFinder::Options{
      .min_lr = 1e-3,
      .max_lr = 2,
      .steps = 7,
      .mode = LrTestMode::linear,
      .early_stop_threshold = {}}.of_test();
  CHECK(test.min_lr == 1e-3);
  CHECK(test.max_lr == 2);
  CHECK(test.steps == 7);
  CHECK(test.mode == LrTestMode::linear);
  CHECK_FALSE(test.early_stop_threshold);
  const BatchSizeSearch::Options search =
      BatchSizeFinder::Options{.mode = BatchSizeMode::binsearch, .init = 3, .max_trials = 4, .margin = 0.5}.of_search();
  CHECK(search.mode == BatchSizeMode::binsearch);
  CHECK(search.init == 3);
  CHECK(search.max_trials == 4);
  CHECK(search.margin == 0.5);
  CHECK_THAT(message_of<ConfigError>([] { LearningRateFinder({.min_lr = 1, .max_lr = 0.1}); }),
             ContainsSubstring("below max_lr"));
}

}  // namespace finders_test
