#pragma once

#include <memory>
#include <vector>

#include "fulgur/core/contracts/dataset.h"

namespace fulgur {

/// Datasets one after the other. They must have the same entries, dtypes and shapes.
class FULGUR_API ConcatDataset : public Dataset {
 public:
  /// Throws a DataError if there are no datasets, or if samples of one differ in kind from the first one's.
  explicit ConcatDataset(std::vector<std::shared_ptr<const Dataset>> parts);
  int64_t size() const override { return ends_.back(); }
  Batch prototype() const override;
  void read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out, const SampleContext& context) const override;
  /// A view if the range is within one part that provides one.
  std::optional<Batch> view(int64_t start, int64_t length) const override;

 private:
  size_t part_of(int64_t index) const;
  int64_t begin_of(size_t part) const { return part == 0 ? 0 : ends_[part - 1]; }

  std::vector<std::shared_ptr<const Dataset>> parts_;
  std::vector<int64_t> ends_;
};

}  // namespace fulgur
