#include "fulgur/data/samplers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fulgur/core/state/split_mix.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "sampling/permutation.h"

namespace fulgur {
namespace {

int64_t checked_size(const char* who, int64_t dataset_size) {
  if (dataset_size < 0)
    throw ConfigError(cat("[data.", who, "] the dataset's size must not be negative; got ", dataset_size, "."));
  return dataset_size;
}

void check_share(int64_t rank, int64_t world_size) {
  if (world_size < 1 || rank < 0 || rank >= world_size)
    throw ConfigError(
        cat("[data.Sampler] the rank must be in [0, world size); got rank ", rank, " of ", world_size, "."));
}

int64_t share_size(int64_t dataset_size, int64_t rank, int64_t world_size) {
  check_share(rank, world_size);
  return dataset_size <= rank ? 0 : (dataset_size - rank - 1) / world_size + 1;
}

/// Every world_size-th index, starting at the rank.
std::vector<int64_t> share_of(std::vector<int64_t> all, const SamplerContext& context) {
  const int64_t count = share_size(static_cast<int64_t>(all.size()), context.rank, context.world_size);
  if (context.world_size == 1) return all;
  std::vector<int64_t> share(static_cast<size_t>(count));
  for (size_t i = 0; i < share.size(); ++i)
    share[i] = all[static_cast<size_t>(context.rank) + i * static_cast<size_t>(context.world_size)];
  return share;
}

}  // namespace

SequentialSampler::SequentialSampler(int64_t dataset_size)
    : dataset_size_(checked_size("SequentialSampler", dataset_size)) {}

int64_t SequentialSampler::size(int64_t rank, int64_t world_size) const {
  return share_size(dataset_size_, rank, world_size);
}

std::vector<int64_t> SequentialSampler::order(const SamplerContext& context) const {
  std::vector<int64_t> share(static_cast<size_t>(size(context.rank, context.world_size)));
  for (size_t i = 0; i < share.size(); ++i) share[i] = context.rank + static_cast<int64_t>(i) * context.world_size;
  return share;
}

RandomSampler::RandomSampler(int64_t dataset_size) : dataset_size_(checked_size("RandomSampler", dataset_size)) {}

int64_t RandomSampler::size(int64_t rank, int64_t world_size) const {
  return share_size(dataset_size_, rank, world_size);
}

std::vector<int64_t> RandomSampler::order(const SamplerContext& context) const {
  return share_of(random_permutation(dataset_size_, context.seed, static_cast<uint64_t>(context.epoch)), context);
}

SubsetSampler::SubsetSampler(std::vector<int64_t> indices, bool shuffle)
    : indices_(std::move(indices)), shuffle_(shuffle) {
  for (const int64_t index : indices_)
    if (index < 0) throw ConfigError(cat("[data.SubsetSampler] indices must not be negative; got ", index, "."));
}

int64_t SubsetSampler::size(int64_t rank, int64_t world_size) const {
  return share_size(static_cast<int64_t>(indices_.size()), rank, world_size);
}

std::vector<int64_t> SubsetSampler::order(const SamplerContext& context) const {
  if (!shuffle_) return share_of(indices_, context);
  std::vector<int64_t> places =
      random_permutation(static_cast<int64_t>(indices_.size()), context.seed, static_cast<uint64_t>(context.epoch));
  for (int64_t& place : places) place = indices_[static_cast<size_t>(place)];
  return share_of(std::move(places), context);
}

WeightedSampler::WeightedSampler(std::vector<double> weights, int64_t num_samples, bool replacement)
    : weights_(std::move(weights)), num_samples_(num_samples), replacement_(replacement) {
  int64_t drawable = 0;
  double sum = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!(weights_[i] >= 0) || !std::isfinite(weights_[i]))
      throw ConfigError(cat("[data.WeightedSampler] weights must be finite and not negative; got ", weights_[i],
                            " at index ", static_cast<int64_t>(i), "."));
    drawable += weights_[i] > 0 ? 1 : 0;
    sums_.push_back(sum += weights_[i]);
  }
  if (num_samples_ < 1)
    throw ConfigError(cat("[data.WeightedSampler] num_samples must be at least 1; got ", num_samples_, "."));
  if (drawable == 0 || !std::isfinite(sum))
    throw ConfigError(cat("[data.WeightedSampler] the sum of the weights must be finite and above 0; got ", sum, "."));
  if (!replacement_ && num_samples_ > drawable)
    throw ConfigError(
        cat("[data.WeightedSampler] without replacement num_samples must be at most the number of weights above 0, ",
            drawable, "; got ", num_samples_, "."));
}

int64_t WeightedSampler::size(int64_t rank, int64_t world_size) const {
  return share_size(num_samples_, rank, world_size);
}

std::vector<int64_t> WeightedSampler::draw(const SamplerContext& context) const {
  SplitMix64 random(mix_bits(mix_bits(context.seed + 0x9e3779b97f4a7c15u) ^ static_cast<uint64_t>(context.epoch)));
  std::vector<int64_t> drawn;
  drawn.reserve(static_cast<size_t>(num_samples_));
  if (replacement_) {
    for (int64_t i = 0; i < num_samples_; ++i) {
      const double at = random.uniform() * sums_.back();
      // The first sum above it: its weight is above 0. Rounding may reach the last sum, never a weight of 0 after it.
      auto found = std::ranges::upper_bound(sums_, at);
      if (found == sums_.end()) found = std::ranges::lower_bound(sums_, sums_.back());
      drawn.push_back(found - sums_.begin());
    }
    return drawn;
  }
  std::vector<std::pair<double, int64_t>> keys;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const double u = 1 - random.uniform();  // in (0, 1]
    if (weights_[i] > 0) keys.emplace_back(-std::log(u) / weights_[i], static_cast<int64_t>(i));
  }
  std::partial_sort(keys.begin(), keys.begin() + num_samples_, keys.end());
  for (int64_t i = 0; i < num_samples_; ++i) drawn.push_back(keys[static_cast<size_t>(i)].second);
  return drawn;
}

std::vector<int64_t> WeightedSampler::order(const SamplerContext& context) const {
  return share_of(draw(context), context);
}

DistributedSampler::DistributedSampler(std::shared_ptr<const Sampler> source, UnevenShares rest)
    : source_(std::move(source)), rest_(rest) {
  if (!source_) throw ConfigError("[data.DistributedSampler] a sampler is needed; got none.");
}

int64_t DistributedSampler::size(int64_t rank, int64_t world_size) const {
  check_share(rank, world_size);
  const int64_t all = source_->size(0, 1);
  if (rest_ == UnevenShares::error && all % world_size != 0)
    throw DataError(cat("[data.DistributedSampler] ", all, " samples cannot be divided evenly among ", world_size,
                        " processes. Choose UnevenShares::pad or drop, or leave ", all % world_size, " out."));
  return rest_ == UnevenShares::drop ? all / world_size : (all + world_size - 1) / world_size;
}

std::vector<int64_t> DistributedSampler::order(const SamplerContext& context) const {
  const std::vector<int64_t> all = source_->order({.seed = context.seed, .epoch = context.epoch});
  std::vector<int64_t> share(static_cast<size_t>(size(context.rank, context.world_size)));
  for (size_t i = 0; i < share.size(); ++i)
    share[i] = all[(static_cast<size_t>(context.rank) + i * static_cast<size_t>(context.world_size)) % all.size()];
  return share;
}

FixedBatchSampler::FixedBatchSampler(std::shared_ptr<const Sampler> source, int64_t batch_size, bool drop_last)
    : source_(std::move(source)), batch_size_(batch_size), drop_last_(drop_last) {
  if (!source_) throw ConfigError("[data.FixedBatchSampler] a sampler is needed; got none.");
  if (batch_size_ < 1)
    throw ConfigError(cat("[data.FixedBatchSampler] batch_size must be at least 1; got ", batch_size_, "."));
}

int64_t FixedBatchSampler::samples(int64_t rank, int64_t world_size) const {
  const int64_t all = source_->size(rank, world_size);
  return drop_last_ ? all - all % batch_size_ : all;
}

std::shared_ptr<const BatchSampler> FixedBatchSampler::shared_evenly(UnevenShares rest) const {
  if (dynamic_cast<const DistributedSampler*>(source_.get())) return nullptr;
  return std::make_shared<FixedBatchSampler>(std::make_shared<DistributedSampler>(source_, rest), batch_size_,
                                             drop_last_);
}

int64_t FixedBatchSampler::size(int64_t rank, int64_t world_size) const {
  return (samples(rank, world_size) + batch_size_ - 1) / batch_size_;
}

std::vector<std::vector<int64_t>> FixedBatchSampler::batches(const SamplerContext& context) const {
  const std::vector<int64_t> order = source_->order(context);
  std::vector<std::vector<int64_t>> batches;
  const int64_t usable = samples(context.rank, context.world_size);
  for (int64_t begin = 0; begin < usable; begin += batch_size_)
    batches.emplace_back(order.begin() + begin, order.begin() + std::min(begin + batch_size_, usable));
  return batches;
}

}  // namespace fulgur
