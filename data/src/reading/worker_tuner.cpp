#include "reading/worker_tuner.h"

#include <algorithm>

#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

constexpr size_t kMeasured = 8;
// One more worker must gain this much to be worth its core.
constexpr double kGain = 0.97;

}  // namespace

bool WorkerTuner::batch_given(Clock::time_point now) {
  if (done_) return false;
  const auto before = last_;
  last_ = now;
  // The first batches wait for threads, buffers and the page cache; prefetched ones are returned at once.
  const int64_t skipped = 2 + trying_ * prefetch_factor_;
  if (!before || ++seen_ <= skipped) return false;
  times_.push_back(std::chrono::duration<double>(now - *before).count());
  return times_.size() == kMeasured && conclude();
}

bool WorkerTuner::finish() {
  if (done_) return false;
  const int64_t before = workers();
  done_ = true;
  return workers() != before;
}

bool WorkerTuner::conclude() {
  const int64_t before = workers();
  std::nth_element(times_.begin(), times_.begin() + kMeasured / 2, times_.end());
  measured_.push_back(times_[kMeasured / 2]);
  times_.clear();
  seen_ = 0;
  last_.reset();
  const bool better = trying_ == 0 || measured_.back() < kGain * measured_[static_cast<size_t>(best_)];
  if (better) best_ = trying_;
  // The first worker mostly costs the run as much time as it saves; a second one may still help.
  if ((!better && trying_ > 1) || trying_ == most_)
    done_ = true;
  else
    ++trying_;
  return workers() != before;
}

std::string WorkerTuner::describe() const {
  std::vector<std::string> parts;
  for (size_t n = 0; n < measured_.size(); ++n)
    parts.push_back(cat(static_cast<int64_t>(n), ": ", format_fixed(measured_[n] * 1e6, 0), " µs"));
  return parts.empty() ? "too few batches to measure" : join(parts);
}

}  // namespace fulgur
