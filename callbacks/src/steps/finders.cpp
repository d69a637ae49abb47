#include "fulgur/callbacks/finders.h"

#include <string_view>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

void require_search(RunContext& run, bool searched, std::string_view finder, std::string_view in_code) {
  // A run that continues from a checkpoint has its values.
  if (searched || run.fast_dev_run() || run.progress().batches_total.completed > 0) return;
  throw ConfigError(cat("[callbacks.", finder,
                        "] `trainer fit` searches before the run; this run was started by other "
                        "code. Leave the callback out, and use ",
                        in_code,
                        ", or start the run with a program that "
                        "links fulgur::main."));
}

}  // namespace

void LearningRateFinder::Options::fields(Fields& f) {
  f(min_lr, "min_lr", "The first learning rate of the test.").greater_than(0);
  f(max_lr, "max_lr", "The last learning rate of the test.").greater_than(0);
  f(steps, "steps", "Optimizer steps of the test.").at_least(1);
  f(mode, "mode", "Whether each step multiplies the rate by a constant, or adds one.");
  f(early_stop_threshold, "early_stop_threshold",
    "The test ends when the smoothed loss exceeds this many times its smallest value; null: never.")
      .greater_than(1);
  f(found, "found", "The result, which the run sets. If it is set, nothing is searched.").greater_than(0);
}

LrRangeTest::Options LearningRateFinder::Options::of_test() const {
  return {
      .min_lr = min_lr, .max_lr = max_lr, .steps = steps, .mode = mode, .early_stop_threshold = early_stop_threshold};
}

LearningRateFinder::LearningRateFinder(Options options) : options_(options) {
  static_cast<void>(LrRangeTest(options_.of_test()));  // checks them
}

void LearningRateFinder::on_train_start(RunContext& run) {
  require_search(run, options_.found.has_value(), "LearningRateFinder", "the callback LrRangeTest with suggest_lr()");
}

void BatchSizeFinder::Options::fields(Fields& f) {
  f(mode, "mode", "power: doubles the size until a batch does not fit; binsearch: then looks for the exact size.");
  f(steps_per_trial, "steps_per_trial", "Optimizer steps of a trial, and batches of its validation.").at_least(1);
  f(init, "init", "The first size; if it does not fit, it is halved.").at_least(1);
  f(max_trials, "max_trials", "Trials at most.").at_least(1);
  f(margin, "margin", "For binsearch: the part of the greatest size that is left free.").at_least(0).less_than(1);
  f(found, "found", "The result, which the run sets. If it is set, nothing is searched.").at_least(1);
}

BatchSizeSearch::Options BatchSizeFinder::Options::of_search() const {
  return {.mode = mode, .init = init, .max_trials = max_trials, .margin = margin};
}

BatchSizeFinder::BatchSizeFinder(Options options) : options_(options) {}

void BatchSizeFinder::on_train_start(RunContext& run) {
  require_search(run, options_.found.has_value(), "BatchSizeFinder", "BatchSizeSearch");
}

[[maybe_unused]] static const bool registered_learning_rate_finder = Registry<Callback>::add<LearningRateFinder>(
    "LearningRateFinder", "Searches the learning rate before the run, as `trainer tune lr` does.");
[[maybe_unused]] static const bool registered_batch_size_finder = Registry<Callback>::add<BatchSizeFinder>(
    "BatchSizeFinder", "Searches the batch size before the run, as `trainer tune batch_size` does.");

}  // namespace fulgur
