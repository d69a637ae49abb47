#include "tuning/finders.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "fulgur/callbacks/finders.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/core/text/csv_format.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/checkpoint_config.h"
#include "tuning/tune_batch_size.h"
#include "tuning/tune_lr.h"
#include "tuning/tuned_config.h"

namespace fulgur::cli {
namespace {

LearningRateFinder::Options* lr_finder(Spec<Callback>& callback) {
  return options_of<LearningRateFinder>(callback, "LearningRateFinder");
}

BatchSizeFinder::Options* batch_size_finder(Spec<Callback>& callback) {
  return options_of<BatchSizeFinder>(callback, "BatchSizeFinder");
}

// The sizes of the plan would be those that no trial has tested, or none that the loader can have.
void refuse_planned_sizes(const std::vector<Spec<Callback>>& callbacks) {
  if (std::ranges::any_of(callbacks, [](const auto& c) { return c.class_path() == "BatchSizeScheduler"; }))
    throw ConfigError(
        "[callbacks.BatchSizeFinder] the batch size is either found or planned; the config has BatchSizeFinder and "
        "BatchSizeScheduler. Find the size with `trainer tune batch_size`, and choose the sizes of BatchSizeScheduler "
        "up to it.");
}

ExitCode find_lr(Config& config, LearningRateFinder::Options& finder, bool several) {
  if (finder.found) return ExitCode::ok;
  config.trainer.check_scale_lr();  // the run may have neither
  {
    // A rate that cannot be set is refused before the test.
    const std::vector<RateOption> rates = rates_of(config);
    Config check = config;
    set_rates(check, rates.empty() ? 0 : rates.front().value);
  }
  const LrTestReport test = test_lr(config, finder.of_test(), several);
  if (test.exit_code != ExitCode::ok) return test.exit_code;
  const LrSuggestion suggestion = suggest_lr(test.curve);
  finder.found = suggestion.lr.value_or(test.initial_lr);
  if (!suggestion.lr) {
    log::warn("cli.no_lr_suggestion",
              cat("LearningRateFinder: no suggestion is possible: ", suggestion.reason,
                  ". The run has the learning rate of its config, ", csv_number(four_digits(test.initial_lr))));
    return ExitCode::ok;
  }
  log::info(cat("LearningRateFinder: learning rate ", csv_number(four_digits(*suggestion.lr)), " instead of ",
                csv_number(four_digits(test.initial_lr))));
  set_rates(config, *finder.found);
  return ExitCode::ok;
}

ExitCode find_batch_size(Config& config, BatchSizeFinder::Options& finder, bool several) {
  if (finder.found) return ExitCode::ok;
  if (several)
    throw ConfigError(
        "[callbacks.BatchSizeFinder] a process that runs out of memory leaves its group, so the processes of a run "
        "cannot search together. Use `trainer tune batch_size`, which starts them for each trial, and set "
        "data.batch_size.");
  const int64_t before = batch_size_of(config);
  BatchSizeSearch search(finder.of_search());
  try {
    try_batch_sizes(
        search, [&](int64_t size) { return try_batch_size(config, size, finder.steps_per_trial, /*several=*/false); });
  } catch (const Error& error) {
    if (error.code() != ExitCode::interrupted && error.code() != ExitCode::terminated) throw;
    return error.code();
  }
  const auto found = search.suggestion();
  if (!found)
    throw Error(cat("[callbacks.BatchSizeFinder] no batch size can be suggested: ", search.end_reason(),
                    ". Start with a smaller init, or make the model smaller (docs/memory.md)."));
  log::info(cat("BatchSizeFinder: batch size ", *found, " instead of ", before, " (", search.end_reason(), ")"));
  finder.found = found;
  set_batch_size(config, *found);
  return ExitCode::ok;
}

}  // namespace

ExitCode run_finders(Config& config, bool several) {
  std::vector<Spec<Callback>>& callbacks = config.trainer.callbacks;
  const auto searches = [](Spec<Callback>& callback) {
    const auto* const lr = lr_finder(callback);
    const auto* const size = batch_size_finder(callback);
    return (lr != nullptr && !lr->found) || (size != nullptr && !size->found);
  };
  if (config.trainer.fast_dev_run.batches > 0 || std::ranges::none_of(callbacks, searches) ||
      !starts_at_first_step(config))
    return ExitCode::ok;
  for (Spec<Callback>& callback : callbacks)
    if (const auto* const size = batch_size_finder(callback); size != nullptr && !size->found)
      refuse_planned_sizes(callbacks);
  // A run without a seed begins with the generator as it is.
  const RngGuard generator({at::Device(at::kCPU)});
  for (size_t i = 0; i < callbacks.size(); ++i) {
    ExitCode code = ExitCode::ok;
    if (auto* const lr = lr_finder(callbacks[i]))
      code = find_lr(config, *lr, several);
    else if (auto* const size = batch_size_finder(callbacks[i]))
      code = find_batch_size(config, *size, several);
    if (code != ExitCode::ok) return code;
  }
  return ExitCode::ok;
}

}  // namespace fulgur::cli
