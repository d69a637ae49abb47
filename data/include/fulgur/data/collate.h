#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fulgur/core/state/batch.h"

/// Functions for `DataLoaderOptions::collate`, which make a batch from lists with one tensor per sample.
namespace fulgur::collate {

/// Stacks all entries except those named, which stay lists: `stack_all_but({"boxes"})`. Throws a DataError if
/// samples differ in shape (it names the entry and both shapes) or a name is unknown (it names the existing entries).
FULGUR_API std::function<Batch(Batch)> stack_all_but(std::vector<std::string> lists);

/// Stacks all entries; pads those named with `value` at the end to the longest sample of the batch, in each dimension,
/// and adds an entry `<name>.length` with the lengths of dimension 0 (int64).
FULGUR_API std::function<Batch(Batch)> pad(std::vector<std::string> names, double value = 0);

}  // namespace fulgur::collate
