#pragma once

namespace fulgur::detail {

struct RunState;
struct Services;

/// After the first validation or sanity check of a process: throws a MonitorError, after which `fit` saves, if a
/// callback or a schedule monitors a misspelt validation metric.
void refuse_misspelt_monitors(const RunState& run, const Services& services);

/// Warns, after the first training batch of a process, of metrics that callbacks and schedules monitor and that neither
/// validation nor training has logged: they are needed at the epoch's end, which may be hours away. Not an error, since
/// a hook may log them there. If validation runs, the check waits for its metrics.
class MonitorCheck {
 public:
  MonitorCheck(const RunState& run, const Services& services);
  /// Whether a callback or a schedule monitors a metric, so that a hook may end the run with a MonitorError.
  bool monitors() const { return monitors_; }
  /// Call after each training batch.
  void after_batch();

 private:
  const RunState& run_;
  const Services& services_;
  bool monitors_ = false;
  bool done_ = false;
};

}  // namespace fulgur::detail
