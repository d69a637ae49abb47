#pragma once

#include "fulgur/core/contracts/dataset.h"

namespace fulgur {

/// Named tensors in memory, samples in dimension 0: `TensorDataset({{"image", x}, {"label", y}})`. Dtypes are kept, and
/// ranges are views of the tensors, so do not write into a batch. Thread-safe.
class FULGUR_API TensorDataset : public Dataset {
 public:
  /// Throws a DataError that names an entry which is not a CPU tensor with at least one dimension and the same length
  /// as the others.
  explicit TensorDataset(Batch samples);
  int64_t size() const override { return size_; }
  Batch prototype() const override;
  void read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out, const SampleContext& context) const override;
  std::optional<Batch> view(int64_t start, int64_t length) const override;
  /// All samples.
  const Batch& samples() const { return samples_; }

 private:
  Batch samples_;
  int64_t size_ = 0;
};

}  // namespace fulgur
