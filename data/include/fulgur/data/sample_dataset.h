#pragma once

#include <string>

#include "fulgur/core/contracts/dataset.h"
#include "fulgur/data/sample.h"

namespace fulgur {

/// A dataset for which the user writes a single function from an index to a sample:
///
///     struct Images : fulgur::SampleDataset {
///       int64_t size() const override { return 1000; }
///       fulgur::Sample get(int64_t index, const fulgur::SampleContext& context) const override {
///         return {{"image", decode(index)}, {"label", labels[index]}};
///       }
///     };
///
/// All samples have the entries of the first one. Entries whose shapes differ from sample to sample need a loader with
/// a collate function (`fulgur/data/collate.h`).
class FULGUR_API SampleDataset : public Dataset {
 public:
  /// Returns sample `index`. All worker threads call it concurrently. Random transforms use `SplitMix64 random =
  /// context.random(index);`.
  virtual Sample get(int64_t index, const SampleContext& context) const = 0;
  /// Made from `get(0)`.
  Batch prototype() const override;
  void read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out, const SampleContext& context) const override;

 protected:
  /// Sentences for the error that sample `index` has another shape or dtype than the first one: where it comes from,
  /// and what to do. Called by the thread that has read the sample.
  virtual std::string advice_for_shape(int64_t index) const;
};

}  // namespace fulgur
