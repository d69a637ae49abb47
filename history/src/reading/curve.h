#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fulgur::history {

/// The values of a metric in bounded memory: at most kMostBuckets ranges of equally many values, each with its smallest
/// value, largest value and mean. NaN and infinity are counted and left out.
class Curve {
 public:
  static constexpr size_t kMostBuckets = 512;
  struct Bucket {
    int64_t first_step = 0, last_step = 0;
    double least = 0, most = 0, mean = 0;
    int64_t count = 0;
  };

  void add(int64_t step, double value);
  const std::vector<Bucket>& buckets() const { return buckets_; }
  int64_t nonfinite() const { return nonfinite_; }
  /// The buckets, merged until there are at most `most`, which is at least 1.
  std::vector<Bucket> at_most(size_t most) const;

 private:
  static void merge(std::vector<Bucket>& buckets);
  std::vector<Bucket> buckets_;
  int64_t per_bucket_ = 1, nonfinite_ = 0;
};

/// A quantity that increases with the step (epochs, seconds), known at some steps and linear between them. It keeps at
/// most kMostAnchors of them.
class StepMap {
 public:
  static constexpr size_t kMostAnchors = 1024;
  /// An anchor that is not after the last one is ignored. The first is 0 at step 0.
  void add(int64_t step, double value);
  bool empty() const { return anchors_.size() < 2; }
  /// After the last anchor the last slope continues; 0 if the map is empty.
  double at(double step) const;

 private:
  struct Anchor {
    double step = 0, value = 0;
  };
  std::vector<Anchor> anchors_ = {{}};
};

}  // namespace fulgur::history
