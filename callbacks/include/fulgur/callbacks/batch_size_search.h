#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "fulgur/core/export.h"
#include "fulgur/core/options/enum_names.h"

namespace fulgur {

/// How a batch size is searched: `power` doubles it until it does not fit; `binsearch` then halves the interval between
/// the greatest size that fits and the smallest that does not.
enum class BatchSizeMode { power, binsearch };
constexpr auto enum_names(BatchSizeMode) {
  return std::to_array<EnumName<BatchSizeMode>>(
      {{BatchSizeMode::power, "power"}, {BatchSizeMode::binsearch, "binsearch"}});
}

/// The result of training with a batch size.
enum class BatchTrial {
  fits,
  out_of_memory,
  no_such_batch,  ///< the data has no batch of this size
};

/// Which batch sizes are tried, in which order, and which is the greatest that fits. It decides from the results alone.
class FULGUR_API BatchSizeSearch {
 public:
  struct Options {
    BatchSizeMode mode = BatchSizeMode::power;
    int64_t init = 2;         ///< the first size
    int64_t max_trials = 25;  ///< trials in total
    double margin = 0.05;     ///< of binsearch: the part of the greatest size that is left free
  };
  /// Throws a ConfigError for an option out of its range.
  explicit BatchSizeSearch(const Options& options);

  /// The size to try next; nullopt if the search has ended.
  std::optional<int64_t> next() const { return next_; }
  /// The result of the trial of `next()`.
  void note(BatchTrial result);
  /// The greatest size that has fitted; nullopt if none has.
  std::optional<int64_t> greatest() const { return fits_; }
  /// The size to train with: `greatest()`, less the margin of binsearch, and at least 1.
  std::optional<int64_t> suggestion() const;
  /// Why the search has ended, as a sentence without a full stop.
  std::string end_reason() const;
  int64_t trials() const { return trials_; }

 private:
  void choose_next();

  Options options_;
  std::optional<int64_t> next_;
  std::optional<int64_t> fits_, fails_;  // the greatest that fits, the smallest that does not
  bool memory_ends_ = false, data_ends_ = false;
  int64_t trials_ = 0;
};

}  // namespace fulgur
