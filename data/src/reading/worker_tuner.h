#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fulgur {

/// Finds a number of workers: 0, 1, 2, … are tried for some batches each, until one more is no faster. The criterion is
/// the time from batch to batch, including the run's work in between, since workers take cores from it.
class WorkerTuner {
 public:
  using Clock = std::chrono::steady_clock;
  WorkerTuner(int64_t most, int64_t prefetch_factor) : most_(most), prefetch_factor_(prefetch_factor) {}

  /// The number to use now.
  int64_t workers() const { return done_ ? best_ : trying_; }
  bool done() const { return done_; }
  /// A batch was returned at `now`. True if `workers()` has changed.
  bool batch_given(Clock::time_point now);
  /// The epoch is over: decides from the measurements so far. True if `workers()` has changed.
  bool finish();
  /// Discards the time of the last batch (another epoch starts, a validation came in between).
  void pause() { last_.reset(); }
  /// `0: 512 µs, 1: 301 µs`: the median time of a batch by number of workers.
  std::string describe() const;

 private:
  bool conclude();

  int64_t most_, prefetch_factor_;
  int64_t trying_ = 0, best_ = 0;
  int64_t seen_ = 0;
  bool done_ = false;
  std::optional<Clock::time_point> last_;
  std::vector<double> times_;     ///< for the number being tried
  std::vector<double> measured_;  ///< medians by number of workers
};

}  // namespace fulgur
