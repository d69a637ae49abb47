#pragma once

namespace fulgur::detail {

class Run;

/// After the first validation or sanity check of a process: throws a ConfigError if a callback or a schedule monitors a
/// misspelt validation metric.
void refuse_misspelt_monitors(const Run& run);

/// Warns, after the first training batch of a process, of metrics that callbacks and schedules monitor and that neither
/// validation nor training has logged: they are needed at the epoch's end, which may be hours away. Not an error, since
/// a hook may log them there. Where validation runs, it waits for its names.
class MonitorCheck {
 public:
  explicit MonitorCheck(Run& run) : run_(run) {}
  /// After each training batch.
  void after_batch();

 private:
  Run& run_;
  bool done_ = false;
};

}  // namespace fulgur::detail
