#pragma once

#include <memory>

#include "fulgur/core/contracts/sampler.h"

namespace fulgur {

/// The rest of an epoch of `source` after the first `seen` samples of its order were read, by any number of ranks. The
/// DistributedSampler around it divides it among the ranks.
class RestSampler final : public Sampler {
 public:
  RestSampler(std::shared_ptr<const Sampler> source, int64_t seen);
  /// The size for all ranks together, whatever the rank.
  int64_t size(int64_t rank, int64_t world_size) const override;
  std::vector<int64_t> order(const SamplerContext& context) const override;
  bool shuffles() const override { return source_->shuffles(); }

 private:
  std::shared_ptr<const Sampler> source_;
  int64_t seen_;
};

}  // namespace fulgur
