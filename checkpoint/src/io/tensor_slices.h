#pragma once

// Independent of LibTorch.
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace fulgur::detail {

/// The elements of a row-major tensor whose index in dimension `dim` is in one of `ranges`; they are in row-major
/// order.
struct PieceSlice {
  struct Range {
    int64_t begin = 0, count = 0;
    auto operator<=>(const Range&) const = default;
  };
  int64_t dim = 0;
  std::vector<Range> ranges = {};
  auto operator<=>(const PieceSlice&) const = default;
};

/// What is wrong with a slice of a tensor of this shape, as the end of a sentence; nullptr: nothing.
const char* problem_of(const PieceSlice& slice, const std::vector<int64_t>& shape);
/// The number of elements of a slice without a problem.
int64_t elements_of(const PieceSlice& slice, const std::vector<int64_t>& shape);

/// Consecutive elements of a slice that are consecutive in the tensor, too: `count` from `in_slice` on are those from
/// `in_tensor` on.
using SliceRun = std::function<void(int64_t in_tensor, int64_t in_slice, int64_t count)>;
/// Calls `use` with the runs of the elements `begin` to `begin + count` of a slice, in their order; nullopt: the whole
/// tensor, which is one run.
void for_each_run(const std::optional<PieceSlice>& slice, const std::vector<int64_t>& shape, int64_t begin,
                  int64_t count, const SliceRun& use);

}  // namespace fulgur::detail
