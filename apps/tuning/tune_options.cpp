#include "tuning/tune_options.h"

#include <string_view>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::cli {
namespace {

void refuse_if(bool given, std::string_view option, std::string_view verb) {
  if (given) throw ConfigError(cat("[cli.tune] --", option, " is an option of tune ", verb, ". Leave it out."));
}

template <class E>
E mode_of(const std::string& text, std::string_view verb) {
  for (const auto& [value, name] : enum_names(E{}))
    if (text == name) return value;
  std::vector<std::string> names;
  for (const auto& item : enum_names(E{})) names.emplace_back(item.name);
  throw ConfigError(cat("[cli.tune] --mode of tune ", verb, " is ", join(names, " or "), "; got ", text, "."));
}

}  // namespace

LrRangeTest::Options lr_options_of(const TuneArguments& given) {
  refuse_if(given.steps_per_trial.has_value(), "steps_per_trial", "batch_size");
  refuse_if(given.init.has_value(), "init", "batch_size");
  refuse_if(given.max_trials.has_value(), "max_trials", "batch_size");
  refuse_if(given.margin.has_value(), "margin", "batch_size");
  LrRangeTest::Options options;
  if (given.mode) options.mode = mode_of<LrTestMode>(*given.mode, "lr");
  options.min_lr = given.min_lr.value_or(options.min_lr);
  options.max_lr = given.max_lr.value_or(options.max_lr);
  options.steps = given.steps.value_or(options.steps);
  if (given.early_stop_threshold) {
    options.early_stop_threshold = *given.early_stop_threshold;
    if (*given.early_stop_threshold == 0) options.early_stop_threshold.reset();
  }
  return options;
}

BatchSizeOptions batch_size_options_of(const TuneArguments& given) {
  refuse_if(given.min_lr.has_value(), "min_lr", "lr");
  refuse_if(given.max_lr.has_value(), "max_lr", "lr");
  refuse_if(given.steps.has_value(), "steps", "lr");
  refuse_if(given.early_stop_threshold.has_value(), "early_stop_threshold", "lr");
  BatchSizeOptions options;
  if (given.mode) options.search.mode = mode_of<BatchSizeMode>(*given.mode, "batch_size");
  options.search.init = given.init.value_or(options.search.init);
  options.search.max_trials = given.max_trials.value_or(options.search.max_trials);
  options.search.margin = given.margin.value_or(options.search.margin);
  options.steps_per_trial = given.steps_per_trial.value_or(options.steps_per_trial);
  if (options.steps_per_trial < 1)
    throw ConfigError(cat("[cli.tune] --steps_per_trial must be at least 1; got ", options.steps_per_trial, "."));
  return options;
}

}  // namespace fulgur::cli
