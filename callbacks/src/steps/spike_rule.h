#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "fulgur/callbacks/spike_detection.h"

namespace fulgur::detail {

/// Decides whether a loss is a spike, without a run. Its memory is bounded by `window`.
class SpikeRule {
 public:
  explicit SpikeRule(const SpikeDetection::Options& options) : options_(options) {}

  struct Verdict {
    bool known = false;      ///< the loss was compared
    bool spike = false;      ///< it is out of range
    bool act = false;        ///< so were the `patience` - 1 losses before it
    bool new_level = false;  ///< the range is given up, and begins with this loss
  };
  /// Judges the loss of the next step. A loss that is not finite changes nothing.
  Verdict judge(double loss);
  /// `the mean of the last 10 steps is 2.1, and a spike is at least 6.3 (rtol 2.0)`, before the last spike.
  const std::string& range() const { return range_; }
  int64_t spikes() const { return spikes_; }
  /// No loss has been compared yet: all of them were only recorded.
  bool is_warming_up() const { return spikes_ == 0 && seen_ <= options_.warmup; }
  int64_t seen() const { return seen_; }

  /// What a checkpoint stores.
  StateTree state() const;
  void load_state(const StateTree& state);
  /// After a rollback: the range is that of the checkpoint, but spikes are still counted.
  void return_to(const StateTree& state);

 private:
  double mean() const;
  double deviation(double mean) const;
  bool is_out_of_range(double loss) const;
  std::string bounds() const;
  void record(double loss);

  SpikeDetection::Options options_;
  std::deque<double> losses_;  // the newest in range, at most `window`
  int64_t seen_ = 0;           // losses recorded since the range began
  int64_t in_a_row_ = 0, spikes_ = 0;
  std::string range_;
};

}  // namespace fulgur::detail
