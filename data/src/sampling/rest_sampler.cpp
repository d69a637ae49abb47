#include "sampling/rest_sampler.h"

#include <algorithm>

namespace fulgur {

RestSampler::RestSampler(std::shared_ptr<const Sampler> source, int64_t seen)
    : source_(std::move(source)), seen_(seen) {}

int64_t RestSampler::size(int64_t, int64_t) const { return std::max<int64_t>(source_->size(0, 1) - seen_, 0); }

std::vector<int64_t> RestSampler::order(const SamplerContext& context) const {
  const std::vector<int64_t> all = source_->order({.seed = context.seed, .epoch = context.epoch});
  return {all.begin() + std::min<int64_t>(seen_, static_cast<int64_t>(all.size())), all.end()};
}

}  // namespace fulgur
