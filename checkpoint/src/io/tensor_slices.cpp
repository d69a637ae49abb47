#include "io/tensor_slices.h"

#include <algorithm>

namespace fulgur::detail {
namespace {

// The elements of one index of the dimension.
int64_t elements_of_index(const PieceSlice& slice, const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (size_t i = static_cast<size_t>(slice.dim) + 1; i < shape.size(); ++i) product *= shape[i];
  return product;
}

int64_t indices_of(const PieceSlice& slice) {
  int64_t sum = 0;
  for (const PieceSlice::Range& range : slice.ranges) sum += range.count;
  return sum;
}

}  // namespace

const char* problem_of(const PieceSlice& slice, const std::vector<int64_t>& shape) {
  if (slice.dim < 0 || slice.dim >= static_cast<int64_t>(shape.size()))
    return "has a slice of a dimension that it does not have";
  if (slice.ranges.empty()) return "has a slice without indices";
  int64_t end = 0;
  const int64_t size = shape[static_cast<size_t>(slice.dim)];
  for (const PieceSlice::Range& range : slice.ranges) {
    if (range.begin < end || range.count < 1 || range.begin > size - range.count)
      return "has a slice whose indices are outside of it, or not in increasing order";
    end = range.begin + range.count;
  }
  return nullptr;
}

int64_t elements_of(const PieceSlice& slice, const std::vector<int64_t>& shape) {
  int64_t rows = 1;
  for (int64_t i = 0; i < slice.dim; ++i) rows *= shape[static_cast<size_t>(i)];
  return rows * indices_of(slice) * elements_of_index(slice, shape);
}

void for_each_run(const std::optional<PieceSlice>& slice, const std::vector<int64_t>& shape, int64_t begin,
                  int64_t count, const SliceRun& use) {
  if (count == 0) return;
  if (!slice) return use(begin, begin, count);
  const int64_t inner = elements_of_index(*slice, shape), row = indices_of(*slice) * inner;
  const int64_t row_of_tensor = shape[static_cast<size_t>(slice->dim)] * inner, end = begin + count;
  for (int64_t outer = begin / row; outer * row < end; ++outer) {
    int64_t at = outer * row;  // in the slice
    for (const PieceSlice::Range& range : slice->ranges) {
      const int64_t first = std::max(begin, at), last = std::min(end, at + range.count * inner);
      if (first < last) use(outer * row_of_tensor + range.begin * inner + first - at, first, last - first);
      at += range.count * inner;
    }
  }
}

}  // namespace fulgur::detail
