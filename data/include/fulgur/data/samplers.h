#pragma once

#include <memory>
#include <vector>

#include "fulgur/core/contracts/loader.h"
#include "fulgur/core/contracts/sampler.h"

namespace fulgur {

/// The dataset's order. Rank r of w sees the samples r, r + w, …, so there are no duplicates, and sizes differ by at
/// most one.
class FULGUR_API SequentialSampler : public Sampler {
 public:
  /// Throws a ConfigError for a negative size.
  explicit SequentialSampler(int64_t dataset_size);
  int64_t size(int64_t rank, int64_t world_size) const override;
  std::vector<int64_t> order(const SamplerContext& context) const override;

 private:
  int64_t dataset_size_;
};

/// A new permutation each epoch, a pure function of seed and epoch on every platform. Ranks share it like
/// SequentialSampler's.
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

/// Selected samples, in the given order or, with `shuffle`, in a new one each epoch. Ranks share them like
/// SequentialSampler's.
class FULGUR_API SubsetSampler : public Sampler {
 public:
  explicit SubsetSampler(std::vector<int64_t> indices, bool shuffle = false);
  int64_t size(int64_t rank, int64_t world_size) const override;
  std::vector<int64_t> order(const SamplerContext& context) const override;
  bool shuffles() const override { return shuffle_; }

 private:
  std::vector<int64_t> indices_;
  bool shuffle_;
};

/// `num_samples` samples drawn by weight, with a new draw in each epoch. With replacement, the expected frequency of a
/// sample is proportional to its weight. Without replacement, each sample occurs at most once, and samples with large
/// weights usually come first (Efraimidis and Spirakis 2006). Weights need not sum to one; samples of weight 0 are
/// never drawn. Ranks share one drawing like SequentialSampler's.
class FULGUR_API WeightedSampler : public Sampler {
 public:
  /// Throws a ConfigError for a weight that is negative or not finite, if none is above 0, or if there are not enough
  /// samples to draw without replacement.
  WeightedSampler(std::vector<double> weights, int64_t num_samples, bool replacement = true);
  int64_t size(int64_t rank, int64_t world_size) const override;
  std::vector<int64_t> order(const SamplerContext& context) const override;
  bool shuffles() const override { return true; }

 private:
  std::vector<int64_t> draw(const SamplerContext& context) const;
  std::vector<double> weights_;
  std::vector<double> sums_;
  int64_t num_samples_;
  bool replacement_;
};

/// Divides another sampler's order into shares of equal size, which ranks that train in lockstep need: rank r of w sees
/// places r, r + w, …. If the order does not divide evenly, it is padded with samples from its beginning (`pad`), its
/// remainder is left out (`drop`), or a DataError is thrown when the order is requested (`error`).
class FULGUR_API DistributedSampler : public Sampler {
 public:
  /// Throws a ConfigError if there is no sampler.
  explicit DistributedSampler(std::shared_ptr<const Sampler> source, UnevenShares rest = UnevenShares::pad);
  int64_t size(int64_t rank, int64_t world_size) const override;
  std::vector<int64_t> order(const SamplerContext& context) const override;
  bool shuffles() const override { return source_->shuffles(); }
  UnevenShares rest() const { return rest_; }

 private:
  std::shared_ptr<const Sampler> source_;
  UnevenShares rest_;
};

/// A sampler's order split into batches.
class FULGUR_API FixedBatchSampler : public BatchSampler {
 public:
  /// Throws a ConfigError if the batch size is below 1 or `source` is null.
  FixedBatchSampler(std::shared_ptr<const Sampler> source, int64_t batch_size, bool drop_last = false);
  int64_t size(int64_t rank, int64_t world_size) const override;
  int64_t batch_size() const override { return batch_size_; }
  std::vector<std::vector<int64_t>> batches(const SamplerContext& context) const override;
  int64_t samples(int64_t rank, int64_t world_size) const override;
  bool shuffles() const override { return source_->shuffles(); }
  std::shared_ptr<const BatchSampler> shared_evenly(UnevenShares rest) const override;

 private:
  std::shared_ptr<const Sampler> source_;
  int64_t batch_size_;
  bool drop_last_;
};

}  // namespace fulgur
