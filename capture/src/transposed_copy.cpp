#include "transposed_copy.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "fulgur/core/state/plain_copy.h"

namespace fulgur::detail {
namespace {

typedef uint16_t Halves __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));

// `from` is (count, columns, rows), `to` (count, rows, columns).
struct Matrices {
  int64_t count, rows, columns;
};

struct Dimension {
  int64_t size, to_stride, from_stride;
};

// Dimensions that are neighbours in the memory of both tensors are one.
std::vector<Dimension> merged(const Tensor& to, const Tensor& from) {
  std::vector<Dimension> dimensions;
  for (int64_t d = 0; d < to.dim(); ++d)
    if (to.size(d) != 1) dimensions.push_back({to.size(d), to.stride(d), from.stride(d)});
  std::ranges::sort(dimensions, std::ranges::greater(), &Dimension::to_stride);
  std::vector<Dimension> found;
  for (const Dimension& inner : dimensions) {
    if (!found.empty() && found.back().to_stride == inner.size * inner.to_stride &&
        found.back().from_stride == inner.size * inner.from_stride)
      found.back() = {found.back().size * inner.size, inner.to_stride, inner.from_stride};
    else
      found.push_back(inner);
  }
  return found;
}

std::optional<Matrices> matrices_of(const Tensor& to, const Tensor& from) {
  std::vector<Dimension> dimensions = merged(to, from);
  if (dimensions.size() == 2) dimensions.insert(dimensions.begin(), {1, to.numel(), to.numel()});
  if (dimensions.size() != 3) return std::nullopt;
  const auto [batch, row, column] = std::tie(dimensions[0], dimensions[1], dimensions[2]);
  const int64_t size = row.size * column.size;
  const bool fits = column.to_stride == 1 && row.to_stride == column.size && batch.to_stride == size &&
                    row.from_stride == 1 && column.from_stride == row.size && batch.from_stride == size;
  return fits ? std::optional(Matrices{batch.size, row.size, column.size}) : std::nullopt;
}

// One step: vectors i and i + n/2 become one of their first halves and one of their second halves, interleaved. After
// log2(n) of them, n vectors of n values are transposed.
void interleave(const Halves (&in)[8], Halves (&out)[8]) {
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __builtin_shufflevector(in[i], in[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
    out[2 * i + 1] = __builtin_shufflevector(in[i], in[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
  }
}
void interleave(const Words (&in)[4], Words (&out)[4]) {
  for (int i = 0; i < 2; ++i) {
    out[2 * i] = __builtin_shufflevector(in[i], in[i + 2], 0, 4, 1, 5);
    out[2 * i + 1] = __builtin_shufflevector(in[i], in[i + 2], 2, 6, 3, 7);
  }
}

template <class Vector, int kSide, class Value>
void transpose_block(Value* to, int64_t to_row, const Value* from, int64_t from_row) {
  Vector one[kSide], other[kSide];
  for (int i = 0; i < kSide; ++i) std::memcpy(&one[i], from + i * from_row, sizeof(Vector));
  interleave(one, other);
  interleave(other, one);
  if constexpr (kSide == 8) {
    interleave(one, other);
    for (int i = 0; i < kSide; ++i) std::memcpy(to + i * to_row, &other[i], sizeof(Vector));
  } else {
    for (int i = 0; i < kSide; ++i) std::memcpy(to + i * to_row, &one[i], sizeof(Vector));
  }
}

// Values of a cache line.
template <class Value>
constexpr int64_t kTile = 64 / sizeof(Value);

// Rows `begin` to `end` of the result. In a tile, a cache line of both tensors is used as a whole.
template <class Vector, int kSide, class Value>
void transpose(Value* to, const Value* from, const Matrices& shape, int64_t begin, int64_t end) {
  const auto one_by_one = [&](int64_t first_row, int64_t last_row, int64_t first_column, int64_t last_column) {
    for (int64_t row = first_row; row < last_row; ++row)
      for (int64_t column = first_column; column < last_column; ++column)
        to[row * shape.columns + column] = from[column * shape.rows + row];
  };
  const int64_t rows = begin + (end - begin) / kSide * kSide, columns = shape.columns / kSide * kSide;
  for (int64_t tile = 0; tile < columns; tile += kTile<Value>)
    for (int64_t row = begin; row < rows; row += kSide)
      for (int64_t column = tile; column < std::min(columns, tile + kTile<Value>); column += kSide)
        transpose_block<Vector, kSide>(to + row * shape.columns + column, shape.columns,
                                       from + column * shape.rows + row, shape.rows);
  one_by_one(begin, rows, columns, shape.columns);
  one_by_one(rows, end, 0, shape.columns);
}

class TransposedCopy final : public DirectCall {
 public:
  TransposedCopy(Tensor to, Tensor from, Matrices shape) : to_(std::move(to)), from_(std::move(from)), shape_(shape) {}
  void run() override {
    if (to_.element_size() == 2)
      copy<Halves, 8, uint16_t>();
    else
      copy<Words, 4, uint32_t>();
  }

 private:
  // Threads share the rows of all results, in tiles.
  template <class Vector, int kSide, class Value>
  void copy() {
    auto* const to = static_cast<Value*>(to_.mutable_data_ptr());
    const auto* const from = static_cast<const Value*>(from_.const_data_ptr());
    const int64_t tiles = (shape_.rows + kTile<Value> - 1) / kTile<Value>, size = shape_.rows * shape_.columns;
    const int64_t grain =
        std::max<int64_t>(1, at::internal::GRAIN_SIZE / (std::min(kTile<Value>, shape_.rows) * shape_.columns));
    at::parallel_for(0, shape_.count * tiles, grain, [&](int64_t first, int64_t last) {
      for (; first < last; ++first) {
        const int64_t matrix = first / tiles, row = first % tiles * kTile<Value>;
        transpose<Vector, kSide>(to + matrix * size, from + matrix * size, shape_, row,
                                 std::min(shape_.rows, row + kTile<Value>));
      }
    });
  }

  Tensor to_, from_;
  Matrices shape_;
};

bool is_usable(const Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && holds_its_values(tensor) &&
         (tensor.element_size() == 2 || tensor.element_size() == 4);
}

}  // namespace

std::unique_ptr<DirectCall> make_transposed_copy(const Tensor& to, const Tensor& from) {
  constexpr int64_t kLeast = 4096;  // values
  if (to.scalar_type() != from.scalar_type() || to.sizes() != from.sizes() || to.numel() < kLeast ||
      to.is_alias_of(from) || !is_usable(to) || !is_usable(from))
    return nullptr;
  const auto shape = matrices_of(to, from);
  // Narrow matrices have no whole block.
  if (!shape || shape->rows < 8 || shape->columns < 8) return nullptr;
  return std::make_unique<TransposedCopy>(to, from, *shape);
}

}  // namespace fulgur::detail
