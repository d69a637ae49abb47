#pragma once

#include <cstdint>
#include <optional>

namespace fulgur {

/// Detects whether workers pay off: if waiting for a batch takes longer than reading it, the run should read it itself.
/// Both times are known anyway, so nothing needs to be tried.
class WorkerOverheadMonitor {
 public:
  struct Times {
    double waited_s, read_s;  ///< per batch
  };
  /// Adds the times of one more batch; the first ones do not count, since threads are starting. Returns the means once,
  /// after 64 batches, if workers are slower.
  std::optional<Times> add(double waited_s, double read_s) {
    if (batches_ >= kBatches || ++batches_ <= kSkipped) return std::nullopt;
    waited_s_ += waited_s;
    read_s_ += read_s;
    if (batches_ < kBatches || read_s_ <= 0 || waited_s_ <= kMargin * read_s_) return std::nullopt;
    constexpr double measured = kBatches - kSkipped;
    return Times{waited_s_ / measured, read_s_ / measured};
  }

 private:
  static constexpr int64_t kBatches = 64, kSkipped = 16;
  static constexpr double kMargin = 1.1;
  int64_t batches_ = 0;
  double waited_s_ = 0, read_s_ = 0;
};

}  // namespace fulgur
