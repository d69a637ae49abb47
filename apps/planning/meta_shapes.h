#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

// What rules have in common.
namespace fulgur::cli {

using MetaStack = std::vector<c10::IValue>;

/// What an operation computes on `meta`, if LibTorch has no kernel for it there: tensors of the shapes that it returns
/// on a GPU. Its arguments are those of the schema, in order.
using MetaRule = MetaStack (*)(const MetaStack& arguments);

/// By the names of operations: of all overloads, or, with a point, of one: `aten::max.` is that without a name.
using MetaRules = std::unordered_map<std::string, MetaRule>;

using Sizes = std::vector<int64_t>;

inline at::Tensor made(const Sizes& sizes, const at::Tensor& like) { return at::empty(sizes, like.options()); }
inline at::Tensor made(const Sizes& sizes, const at::Tensor& like, at::ScalarType dtype) {
  return at::empty(sizes, like.options().dtype(dtype));
}
inline at::Tensor same(const at::Tensor& like) { return at::empty_like(like); }

/// The size of a dimension, which counts from the end if it is negative.
inline int64_t& size_along(Sizes& sizes, int64_t dim) {
  return sizes[static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(sizes.size()) : dim)];
}

inline int64_t at_or_last(const Sizes& values, size_t i) { return i < values.size() ? values[i] : values.back(); }

inline MetaStack like_first(const MetaStack& a) { return {same(a[0].toTensor())}; }

inline MetaStack bool_like_first(const MetaStack& a) {
  return {made(a[0].toTensor().sizes().vec(), a[0].toTensor(), at::kBool)};
}

// A loss whose argument `place` is its reduction.
template <size_t place>
MetaStack reduced_loss(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  return {a[place].toInt() == 0 ? same(input) : made({}, input)};
}

inline MetaStack first_itself(const MetaStack& a) { return {a[0]}; }

inline MetaStack like_second(const MetaStack& a) { return {same(a[1].toTensor())}; }

inline MetaStack adaptive_pool(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  const Sizes output = a[1].toIntVector();
  Sizes sizes = input.sizes().vec();
  std::copy(output.rbegin(), output.rend(), sizes.rbegin());
  return {made(sizes, input)};
}

}  // namespace fulgur::cli
