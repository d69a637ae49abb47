#pragma once

#include <array>
#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// What a loader yields: ordered, named entries, each a tensor with samples in dimension 0, a list of tensors (ragged
/// samples) or a list of strings, one per sample. Copies share the tensors. `Batch{{"x", x}, {"y", y}}` makes one.
class FULGUR_API Batch {
 public:
  using Value = std::variant<Tensor, std::vector<Tensor>, std::vector<std::string>>;
  using Entry = std::pair<std::string, Value>;

  Batch() = default;
  /// Makes entries named `0`, `1`, ….
  Batch(std::initializer_list<Tensor> tensors);
  Batch(std::initializer_list<Entry> entries);

  /// Appends an entry; throws an Error if the name is taken.
  void add(std::string name, Value value);
  /// Replaces the tensor entry at `index` and keeps its name.
  void set(size_t index, Tensor value);

  size_t entries() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  /// Removes all entries; their capacity is kept for the next batch.
  void clear() { entries_.clear(); }
  const Entry& entry(size_t index) const;
  Entry& entry(size_t index);
  bool contains(std::string_view name) const;

  /// The tensor at `index` or named `name`; throws an Error that lists the entries if there is none.
  template <std::integral I>
  const Tensor& operator[](I index) const {
    return tensor_at(static_cast<size_t>(index));
  }
  const Tensor& operator[](std::string_view name) const;
  /// The list of tensors at `index` or named `name`, one per sample; throws an Error that names its actual kind
  /// otherwise.
  const std::vector<Tensor>& list(std::string_view name) const;
  const std::vector<Tensor>& list(size_t index) const;
  /// The list of strings at `index` or named `name`, one per sample; throws the same Error.
  const std::vector<std::string>& strings(std::string_view name) const;
  const std::vector<std::string>& strings(size_t index) const;
  /// The first N entries as tensors: `auto [x, y] = batch.unpack<2>();`
  template <size_t N>
  std::array<Tensor, N> unpack() const {
    std::array<Tensor, N> tensors;
    for (size_t i = 0; i < N; ++i) tensors[i] = tensor_at(i);
    return tensors;
  }

  /// Number of samples: the length of dimension 0 of the first tensor, or of the first list. 0 for an empty batch.
  int64_t size() const;
  /// True if every tensor is on `device`.
  bool is_on(const at::Device& device) const;
  /// Moves every tensor to `device`; tensors already there are shared. With `non_blocking`, pinned memory is copied
  /// asynchronously on the current stream.
  Batch to(const at::Device& device, bool non_blocking = false) const;
  Batch pin_memory() const;
  /// Samples [start, start + length) as views. Throws a DataError if the number of samples of an entry differs from the
  /// batch's; tensors without dimensions are shared.
  Batch narrow(int64_t start, int64_t length) const;

  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }

 private:
  const Tensor& tensor_at(size_t index) const;
  size_t index_of(std::string_view name) const;
  std::vector<Entry> entries_;
};

/// Converts the floating-point tensors of a batch to `dtype`; lists of tensors, integers and strings are left
/// unchanged.
FULGUR_API void convert_floating(Batch& batch, at::ScalarType dtype);

}  // namespace fulgur
