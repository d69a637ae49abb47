#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/dataset.h"
#include "reading/sample_error.h"

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
  void read(int64_t first, int64_t count) {
    const auto wanted = indices(first, count);
    const auto error = exception_of([&] { recipe->dataset->read(wanted, first, batch, context); });
    if (!error) return;
    if (count == 1 || names_one_of(error, wanted)) throw_naming(error, wanted, recipe->name);
    // Read them one by one to find out which sample failed.
    for (int64_t row = first; row < first + count; ++row) {
      const auto of_row = exception_of([&] { recipe->dataset->read(indices(row, 1), row, batch, context); });
      if (of_row) throw_naming(of_row, indices(row, 1), recipe->name);
    }
    throw_naming(error, wanted, recipe->name);
  }
  /// Call after all rows were read.
  void finish() {
    if (!recipe->collate) return;
    batch = recipe->collate(std::move(batch));
    if (recipe->pin_collated) batch = batch.pin_memory();
  }
};

}  // namespace fulgur
