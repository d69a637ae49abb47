#include "reading/batch_task.h"

#include "reading/sample_error.h"

namespace fulgur {

void BatchTask::read(int64_t first, int64_t count) {
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

void BatchTask::finish() {
  if (!recipe->collate) return;
  batch = recipe->collate(std::move(batch));
  if (recipe->pin_collated) batch = batch.pin_memory();
}

}  // namespace fulgur
