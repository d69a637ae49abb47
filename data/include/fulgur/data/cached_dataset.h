#pragma once

#include <filesystem>
#include <memory>

#include "fulgur/core/contracts/dataset.h"

namespace fulgur {

/// How much a CachedDataset keeps, and where.
struct CacheOptions {
  int64_t max_bytes = int64_t{1} << 30;  ///< samples that do not fit are read each time
  /// Empty: in memory. Otherwise a folder, in which a file without a name holds the samples, so that it disappears with
  /// the process; its space is reserved at the beginning.
  std::filesystem::path folder = {};
};

/// Keeps the samples of another dataset after they were read once, for data that is costly to read or decode: the first
/// samples of the dataset, as many as fit. Entries must be tensors. A sample must not depend on the epoch or on random
/// numbers, since the first result is used in all epochs: put random transforms after the cache. Thread-safe; two
/// threads that need the same sample at once may both read it. The cache is not part of a checkpoint.
class FULGUR_API CachedDataset : public Dataset {
 public:
  /// Throws a ConfigError if there is no source or max_bytes is negative, and a DataError for entries that are no
  /// tensors and for a folder in which the file cannot be made.
  CachedDataset(std::shared_ptr<const Dataset> source, CacheOptions options = {});
  ~CachedDataset() override;
  int64_t size() const override;
  Batch prototype() const override;
  void read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out, const SampleContext& context) const override;
  /// Samples that are kept at most.
  int64_t capacity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
