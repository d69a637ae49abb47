#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fulgur/core/batch.h"

/// Functions for `DataLoaderOptions::collate`: from lists with one tensor per sample to a batch.
namespace fulgur::collate {

/// Stacks all entries, but leaves those named as lists: `stack_all_but({"boxes"})`. Throws a DataError that names entry
/// and both shapes where samples differ, or the entries there are where a name is none.
FULGUR_API std::function<Batch(Batch)> stack_all_but(std::vector<std::string> lists);

/// Stacks all entries; those named are filled up with `value` behind their end to the longest sample of the batch, in
/// each dimension, and an entry `<name>.length` tells the lengths of dimension 0 (int64).
FULGUR_API std::function<Batch(Batch)> pad(std::vector<std::string> names, double value = 0);

}  // namespace fulgur::collate
