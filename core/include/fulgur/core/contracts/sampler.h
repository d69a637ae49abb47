#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/options/enum_names.h"

namespace fulgur {

/// What to do if the training samples do not divide evenly among the ranks: repeat some from the start of the epoch,
/// drop the last ones, or throw an error.
enum class UnevenShares { pad, drop, error };
constexpr auto enum_names(UnevenShares) {
  return std::to_array<EnumName<UnevenShares>>(
      {{UnevenShares::pad, "pad"}, {UnevenShares::drop, "drop"}, {UnevenShares::error, "error"}});
}

/// Everything that an order may depend on.
struct SamplerContext {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t rank = 0;
  int64_t world_size = 1;
};

/// The order of samples in an epoch. It is a pure function of seed, epoch, rank and world size, so that a resume needs
/// only a position in this order.
class FULGUR_API Sampler {
 public:
  virtual ~Sampler();
  /// Samples that this rank sees in an epoch.
  virtual int64_t size(int64_t rank, int64_t world_size) const = 0;
  /// Returns the indices of these samples, in order.
  virtual std::vector<int64_t> order(const SamplerContext& context) const = 0;
  /// True if the order is not that of the dataset (a validation loader that shuffles gets a warning).
  virtual bool shuffles() const { return false; }
};

/// The batches of an epoch, for batches that are not just the next samples of an order (similar lengths, balanced
/// classes). A pure function, like a Sampler.
class FULGUR_API BatchSampler {
 public:
  virtual ~BatchSampler();
  /// Number of batches that this rank sees in an epoch. It may depend on nothing else.
  virtual int64_t size(int64_t rank, int64_t world_size) const = 0;
  /// Samples in a full batch.
  virtual int64_t batch_size() const = 0;
  /// The indices of each batch; none may be empty.
  virtual std::vector<std::vector<int64_t>> batches(const SamplerContext& context) const = 0;
  /// Samples that this rank sees in an epoch.
  virtual int64_t samples(int64_t rank, int64_t world_size) const = 0;
  /// Returns a sampler of the same batches that gives every rank the same number of samples, for ranks that train in
  /// lockstep; `rest` is `pad` or `drop`. The default returns nullptr: the shares stay as they are, and a rank with
  /// fewer batches than another ends the epoch for all.
  virtual std::shared_ptr<const BatchSampler> shared_evenly(UnevenShares rest) const;
  /// True if the order is not that of the dataset.
  virtual bool shuffles() const { return false; }
};

}  // namespace fulgur
