#pragma once

#include "fulgur/core/sampler.h"

namespace fulgur {

/// The dataset's order. Rank r of w sees the samples r, r + w, …: no sample twice, sizes differ by one at most.
class FULGUR_API SequentialSampler : public Sampler {
 public:
  /// Throws a ConfigError for a negative size.
  explicit SequentialSampler(int64_t dataset_size);
  int64_t size(int64_t rank, int64_t world_size) const override;
  std::vector<int64_t> order(const SamplerContext& context) const override;

 private:
  int64_t dataset_size_;
};

/// A new permutation each epoch, a pure function of seed and epoch on every platform. Ranks share it as
/// SequentialSampler's do.
class FULGUR_API RandomSampler : public Sampler {
 public:
  /// Throws a ConfigError for a negative size.
  explicit RandomSampler(int64_t dataset_size);
  int64_t size(int64_t rank, int64_t world_size) const override;
  std::vector<int64_t> order(const SamplerContext& context) const override;
  bool shuffles() const override { return true; }

 private:
  int64_t dataset_size_;
};

}  // namespace fulgur
