#pragma once

#include <memory>
#include <vector>

#include "fulgur/core/contracts/dataset.h"

namespace fulgur {

/// Selected samples of another dataset, in a given order.
class FULGUR_API SubsetDataset : public Dataset {
 public:
  /// Throws a DataError for an index outside the source.
  SubsetDataset(std::shared_ptr<const Dataset> source, std::vector<int64_t> indices);
  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  Batch prototype() const override { return source_->prototype(); }
  void read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out, const SampleContext& context) const override;
  /// A view if the range is contiguous in the source, too.
  std::optional<Batch> view(int64_t start, int64_t length) const override;
  /// Indices into the source.
  const std::vector<int64_t>& indices() const { return indices_; }

 private:
  std::shared_ptr<const Dataset> source_;
  std::vector<int64_t> indices_;
};

/// Disjoint random parts of 0 … dataset_size - 1 with `sizes` samples, each in ascending order: a pure function of its
/// arguments. The parts are consecutive ranges of one permutation; `sizes` may leave a remainder. Throws a ConfigError
/// if a size is negative or their sum is too large.
FULGUR_API std::vector<std::vector<int64_t>> split_indices(int64_t dataset_size, const std::vector<int64_t>& sizes,
                                                           uint64_t seed);

/// The parts of `split_indices` as datasets.
FULGUR_API std::vector<std::shared_ptr<SubsetDataset>> split(const std::shared_ptr<const Dataset>& dataset,
                                                             const std::vector<int64_t>& sizes, uint64_t seed);

/// Parts as fractions of the whole, like `random_split(dataset, {0.9, 0.1}, seed)`: sizes are rounded down and the
/// remaining samples go to the first parts, one each. Throws a ConfigError if a fraction is negative or they do not add
/// up to 1.
FULGUR_API std::vector<std::shared_ptr<SubsetDataset>> random_split(const std::shared_ptr<const Dataset>& dataset,
                                                                    const std::vector<double>& shares, uint64_t seed);

}  // namespace fulgur
