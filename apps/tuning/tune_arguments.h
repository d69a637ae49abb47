#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fulgur::cli {

/// The options of `tune` that were given. Those of the range test belong to `tune lr`, the others to `tune batch_size`.
struct TuneArguments {
  std::optional<std::string> mode;
  std::optional<double> min_lr, max_lr, early_stop_threshold;
  std::optional<int64_t> steps;
  std::optional<int64_t> steps_per_trial, init, max_trials;
  std::optional<double> margin;
};

}  // namespace fulgur::cli
