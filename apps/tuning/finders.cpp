#include "tuning/finders.h"

#include <functional>

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

// The options of the callback, if it is a T.
template <class T>
typename T::Options* options_of(Spec<Callback>& callback, std::string_view name) {
  if (callback.class_path() != name) return nullptr;
  return &static_cast<OptionsOf<typename T::Options>&>(callback.options()).value;
}

ExitCode find_lr(Config& config, LearningRateFinder::Options& finder, bool several) {
  if (finder.found) return ExitCode::ok;
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
                  ". The run has the learning rate of its config, ", csv_number(test.initial_lr)));
    return ExitCode::ok;
  }
  log::info(cat("LearningRateFinder: learning rate ", csv_number(*suggestion.lr), " instead of ",
                csv_number(test.initial_lr)));
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
  ExitCode code = ExitCode::ok;
  try {
    try_batch_sizes(
        search, [&](int64_t size) { return try_batch_size(config, size, finder.steps_per_trial, /*several=*/false); });
  } catch (const Error& error) {
    if (error.code() != ExitCode::interrupted && error.code() != ExitCode::terminated) throw;
    code = error.code();
  }
  if (code != ExitCode::ok) return code;
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
  // `auto` is left if there is nothing to resume, or the run has finished.
  const bool starts =
      !config.ckpt_path || !config.load.loads_loops() || (config.ckpt_path == "auto" && !run_has_finished(config));
  if (!starts || config.trainer.fast_dev_run.batches > 0) return ExitCode::ok;
  // A run without a seed begins with the generator as it is.
  const RngGuard generator({at::Device(at::kCPU)});
  for (size_t i = 0; i < config.trainer.callbacks.size(); ++i) {
    Spec<Callback>& callback = config.trainer.callbacks[i];
    ExitCode code = ExitCode::ok;
    if (auto* const lr = options_of<LearningRateFinder>(callback, "LearningRateFinder"))
      code = find_lr(config, *lr, several);
    else if (auto* const size = options_of<BatchSizeFinder>(callback, "BatchSizeFinder"))
      code = find_batch_size(config, *size, several);
    if (code != ExitCode::ok) return code;
  }
  return ExitCode::ok;
}

}  // namespace fulgur::cli
