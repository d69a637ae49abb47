#include "fulgur/data/samplers.h"

#include "fulgur/core/errors.h"
#include "fulgur/core/text.h"
#include "permutation.h"

namespace fulgur {
namespace {

int64_t checked_size(const char* who, int64_t dataset_size) {
  if (dataset_size < 0)
    throw ConfigError(cat("[data.", who, "] the dataset's size must not be negative; got ", dataset_size, "."));
  return dataset_size;
}

void check_share(int64_t rank, int64_t world_size) {
  if (world_size < 1 || rank < 0 || rank >= world_size)
    throw ConfigError(cat("[data.Sampler] the rank must be in [0, world size); got rank ", rank, " of ", world_size, "."));
}

int64_t share_size(int64_t dataset_size, int64_t rank, int64_t world_size) {
  check_share(rank, world_size);
  return dataset_size <= rank ? 0 : (dataset_size - rank - 1) / world_size + 1;
}

}  // namespace

SequentialSampler::SequentialSampler(int64_t dataset_size) : dataset_size_(checked_size("SequentialSampler", dataset_size)) {}

int64_t SequentialSampler::size(int64_t rank, int64_t world_size) const { return share_size(dataset_size_, rank, world_size); }

std::vector<int64_t> SequentialSampler::order(const SamplerContext& context) const {
  std::vector<int64_t> share(static_cast<size_t>(size(context.rank, context.world_size)));
  for (size_t i = 0; i < share.size(); ++i) share[i] = context.rank + static_cast<int64_t>(i) * context.world_size;
  return share;
}

RandomSampler::RandomSampler(int64_t dataset_size) : dataset_size_(checked_size("RandomSampler", dataset_size)) {}

int64_t RandomSampler::size(int64_t rank, int64_t world_size) const { return share_size(dataset_size_, rank, world_size); }

std::vector<int64_t> RandomSampler::order(const SamplerContext& context) const {
  std::vector<int64_t> all = random_permutation(dataset_size_, context.seed, static_cast<uint64_t>(context.epoch));
  if (context.world_size == 1) {
    check_share(context.rank, context.world_size);
    return all;
  }
  std::vector<int64_t> share(static_cast<size_t>(size(context.rank, context.world_size)));
  for (size_t i = 0; i < share.size(); ++i)
    share[i] = all[static_cast<size_t>(context.rank) + i * static_cast<size_t>(context.world_size)];
  return share;
}

}  // namespace fulgur
