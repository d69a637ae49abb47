#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>

#include "fulgur/core/state/batch.h"
#include "fulgur/core/state/split_mix.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur {

/// What a sample may depend on besides its index; random transforms are a function of (seed, epoch, index).
struct FULGUR_API SampleContext {
  uint64_t seed = 0;
  int64_t epoch = 0;

  /// Random numbers for sample `index` in this epoch, independent of the reading thread and of the batch. LibTorch's
  /// default generator depends on both, so do not draw from it in a dataset.
  SplitMix64 random(int64_t index) const;
};

/// Samples that are read by index. Shared by all worker threads: every const function must be thread-safe, and a sample
/// must not depend on the others in its batch. Most users derive from `BatchDataset` or `SampleDataset` instead.
class FULGUR_API Dataset {
 public:
  virtual ~Dataset();
  /// Number of samples.
  virtual int64_t size() const = 0;
  /// A batch of one sample with the names, dtypes and shapes of all samples; the loader allocates batches from it.
  virtual Batch prototype() const = 0;
  /// Writes the samples `indices` to rows [first_row, first_row + indices.size()) of `out`, whose tensors have the
  /// prototype's dtypes and sample shapes. If `out` has a list of tensors instead (a loader with a collate function),
  /// each row is a separate tensor, without the batch dimension and of any shape. Lists already have a slot for each
  /// row; other threads write other rows concurrently. Throws a DataError that names index and file for a bad sample.
  virtual void read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out,
                    const SampleContext& context) const = 0;
  /// Returns samples [start, start + length) without a copy if the data layout allows it, otherwise nullopt.
  virtual std::optional<Batch> view(int64_t start, int64_t length) const;
};

/// A dataset for which the user writes a single function from indices to a batch.
class FULGUR_API BatchDataset : public Dataset {
 public:
  /// Returns the samples `indices` (never empty), in that order. A loader with workers requests parts of a batch.
  virtual Batch get(c10::ArrayRef<int64_t> indices, const SampleContext& context) const = 0;
  Batch prototype() const override;
  void read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out, const SampleContext& context) const override;
};

/// A stream without length or index. Its state is the position of the next sample. Used by one thread at a time, not
/// necessarily the run's.
class FULGUR_API IterableDataset : public Stateful {
 public:
  /// Which of `world_size` disjoint parts of the stream this process reads; called before the first epoch. The default
  /// supports a single part and throws a DistributedError for more.
  virtual void set_share(int64_t rank, int64_t world_size);
  /// Samples of this process in an epoch, for messages; nullopt, the default, if they are not known. The end of an
  /// epoch is that of the stream.
  virtual std::optional<int64_t> samples() const { return std::nullopt; }
  /// Starts epoch `context.epoch` from its first sample.
  virtual void reset(const SampleContext& context) = 0;
  /// Returns up to `count` samples: fewer only at the end of the stream, and nullopt after that.
  virtual std::optional<Batch> next(int64_t count, const SampleContext& context) = 0;
};

}  // namespace fulgur
