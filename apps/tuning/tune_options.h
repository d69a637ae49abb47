#pragma once

#include "fulgur/callbacks/batch_size_search.h"
#include "fulgur/callbacks/lr_range_test.h"
#include "tuning/tune_arguments.h"

namespace fulgur::cli {

struct BatchSizeOptions {
  BatchSizeSearch::Options search;
  int64_t steps_per_trial = 3;
};

/// The options of `tune lr` and `tune batch_size` with their defaults. Throws a ConfigError for an option of the other
/// one, or for a value out of its range.
LrRangeTest::Options lr_options_of(const TuneArguments& given);
BatchSizeOptions batch_size_options_of(const TuneArguments& given);

}  // namespace fulgur::cli
