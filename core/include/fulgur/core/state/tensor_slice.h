#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// All elements of a tensor whose index in one dimension is in one of some ranges: rows or columns, for example.
struct FULGUR_API TensorSlice {
  struct Range {
    int64_t begin = 0, count = 0;
  };
  int64_t dim = 0;
  std::vector<Range> ranges = {};  ///< in increasing order
};

/// Makes `TensorPart`s of a row-major tensor on `meta`, `TensorPart::whole`, ones of a slice of it: `TensorPart::begin`
/// counts the elements of the slice, in row-major order.
FULGUR_API void set_slice(const Tensor& whole, TensorSlice slice);
/// That slice; nullptr: the parts are of the whole tensor.
FULGUR_API const TensorSlice* slice_of(const Tensor& whole);

}  // namespace fulgur
