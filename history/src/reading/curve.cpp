#include "reading/curve.h"

#include <algorithm>
#include <cmath>

namespace fulgur::history {
namespace {

Curve::Bucket joined(const Curve::Bucket& a, const Curve::Bucket& b) {
  const int64_t count = a.count + b.count;
  const double share = static_cast<double>(b.count) / static_cast<double>(count);
  return {std::min(a.first_step, b.first_step),
          std::max(a.last_step, b.last_step),
          std::min(a.least, b.least),
          std::max(a.most, b.most),
          a.mean * (1 - share) + b.mean * share,
          count};
}

}  // namespace

void Curve::merge(std::vector<Bucket>& buckets) {
  size_t kept = 0;
  for (size_t i = 0; i < buckets.size(); i += 2)
    buckets[kept++] = i + 1 < buckets.size() ? joined(buckets[i], buckets[i + 1]) : buckets[i];
  buckets.resize(kept);
}

void Curve::add(int64_t step, double value) {
  if (!std::isfinite(value)) {
    ++nonfinite_;
    return;
  }
  const Bucket one{step, step, value, value, value, 1};
  if (!buckets_.empty() && buckets_.back().count < per_bucket_) {
    buckets_.back() = joined(buckets_.back(), one);
    return;
  }
  if (buckets_.size() == kMostBuckets) {
    merge(buckets_);
    per_bucket_ *= 2;
  }
  buckets_.push_back(one);
}

std::vector<Curve::Bucket> Curve::at_most(size_t most) const {
  std::vector<Bucket> buckets = buckets_;
  while (buckets.size() > most && buckets.size() > 1) merge(buckets);
  return buckets;
}

void StepMap::add(int64_t step, double value) {
  const Anchor anchor{static_cast<double>(step), value};
  if (!std::isfinite(value) || anchor.step <= anchors_.back().step || anchor.value < anchors_.back().value) return;
  if (anchors_.size() == kMostAnchors) {
    size_t kept = 0;
    for (size_t i = 0; i < anchors_.size(); i += 2) anchors_[kept++] = anchors_[i];
    anchors_.resize(kept);
  }
  anchors_.push_back(anchor);
}

double StepMap::at(double step) const {
  if (empty()) return 0;
  auto after = std::upper_bound(anchors_.begin(), anchors_.end(), step,
                                [](double wanted, const Anchor& anchor) { return wanted < anchor.step; });
  if (after == anchors_.begin()) return 0;
  if (after == anchors_.end()) --after;
  const Anchor &left = *(after - 1), &right = *after;
  return left.value + (right.value - left.value) * (step - left.step) / (right.step - left.step);
}

}  // namespace fulgur::history
