#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "fulgur/core/contracts/sampler.h"

namespace fulgur {

/// The rest of an epoch of `source` after the first `seen` samples of its order were read, by any number of ranks. The
/// DistributedSampler around it divides it among the ranks.
class RestSampler final : public Sampler {
 public:
  RestSampler(std::shared_ptr<const Sampler> source, int64_t seen) : source_(std::move(source)), seen_(seen) {}
  /// The size for all ranks together, whatever the rank.
  int64_t size(int64_t, int64_t) const override { return std::max<int64_t>(source_->size(0, 1) - seen_, 0); }
  std::vector<int64_t> order(const SamplerContext& context) const override {
    const std::vector<int64_t> all = source_->order({.seed = context.seed, .epoch = context.epoch});
    return {all.begin() + std::min<int64_t>(seen_, static_cast<int64_t>(all.size())), all.end()};
  }
  bool shuffles() const override { return source_->shuffles(); }

 private:
  std::shared_ptr<const Sampler> source_;
  int64_t seen_;
};

}  // namespace fulgur
