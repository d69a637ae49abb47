#pragma once

#include <cstdint>
#include <optional>

#include "fulgur/callbacks/batch_size_search.h"
#include "fulgur/callbacks/lr_range_test.h"
#include "fulgur/core/contracts/callback.h"

namespace fulgur {

/// In the config of `trainer fit`: before a run that starts at its first step, `tune lr` is carried out, and its
/// suggestion replaces the learning rate of the config's optimizer. The trial has its own module, data and optimizer,
/// so the run is the same, to the bit, as one whose config has that rate. A run that is resumed continues with the rate
/// in its checkpoint. The callback itself only refuses a run whose rate was not searched.
class FULGUR_API LearningRateFinder final : public Callback {
 public:
  struct FULGUR_API Options {
    double min_lr = 1e-8;
    double max_lr = 1;
    int64_t steps = 100;
    LrTestMode mode = LrTestMode::exponential;
    std::optional<double> early_stop_threshold = 4;
    std::optional<double> found = {};
    void fields(Fields& f);
    LrRangeTest::Options of_test() const;
  };
  /// Throws a ConfigError for options that LrRangeTest refuses.
  explicit LearningRateFinder(Options options);
  /// Throws a ConfigError in a run from its first step if no rate was searched.
  void on_train_start(RunContext& run) override;

 private:
  Options options_;
};

/// The same with `tune batch_size`: the suggestion replaces the option `batch_size` of the config's data module.
class FULGUR_API BatchSizeFinder final : public Callback {
 public:
  struct FULGUR_API Options {
    BatchSizeMode mode = BatchSizeMode::power;
    int64_t steps_per_trial = 3;
    int64_t init = 2;
    int64_t max_trials = 25;
    double margin = 0.05;
    std::optional<int64_t> found = {};
    void fields(Fields& f);
    BatchSizeSearch::Options of_search() const;
  };
  explicit BatchSizeFinder(Options options);
  void on_train_start(RunContext& run) override;

 private:
  Options options_;
};

}  // namespace fulgur
