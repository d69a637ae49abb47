#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/contracts/dataset.h"

namespace fulgur {

/// What all batches of a loader have in common.
struct BatchSpec {
  std::shared_ptr<const Dataset> dataset;
  std::function<Batch(Batch)> collate;  ///< or empty
  bool pin_collated = false;            ///< pinned memory for the result of `collate`
  std::string name;                     ///< of the set, for messages
};

/// One batch in progress: created by the loader's thread, read in pieces by any thread, finished by the last of them.
struct BatchTask {
  std::shared_ptr<const BatchSpec> recipe;
  std::shared_ptr<const std::vector<int64_t>> order;  ///< of the epoch
  int64_t begin = 0;                                  ///< position of the first sample in the order
  int64_t rows = 0;
  SampleContext context;
  Batch batch;         ///< memory to read into
  bool whole = false;  ///< a view: there is nothing to read

  c10::ArrayRef<int64_t> indices(int64_t first, int64_t count) const {
    return {order->data() + begin + first, static_cast<size_t>(count)};
  }
  /// Reads rows [first, first + count). Rethrows the dataset's exceptions, with the sample named.
  void read(int64_t first, int64_t count);
  /// Call after all rows were read.
  void finish();
};

}  // namespace fulgur
