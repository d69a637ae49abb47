#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// The elements of a dense tensor as a vector, in the order of their memory; shares it.
Tensor in_memory_order(const Tensor& tensor);

/// The parameters of a unit, with one dtype on one device, in one buffer. It has as many parts of equal size as there
/// are ranks, and each rank owns one of them. Parameters begin at multiples of 64 bytes, which the kernels of
/// optimizers use; the end is padded.
class FlatUnit {
 public:
  /// Moves the parameters into the buffer, on `device`: they keep their identity, values, shapes and strides. Of
  /// parameters that stand for values, these are read now; if `reads_values` is false, the buffer has zeros there.
  /// Throws a ConfigError that names a parameter whose elements are not dense in memory.
  FlatUnit(std::vector<NamedParameter> parameters, at::Device device, int64_t rank, int64_t ranks,
           bool reads_values = true);

  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  /// Of the buffer: ranks · part.
  int64_t numel() const { return numel_; }
  int64_t numel_of_part() const { return part_; }
  /// [ranks · part] elements.
  const Tensor& buffer() const { return buffer_; }
  /// The part of this rank, as a view.
  Tensor own_part() const { return buffer_.narrow(0, rank_ * part_, part_); }
  /// Gives the part of this rank memory apart from the buffer, with the same values: `own_elements` are there from now
  /// on.
  void keep_part();
  /// Undefined before.
  const Tensor& kept_part() const { return kept_part_; }
  /// Elements `begin` to `begin + count` of a parameter, in the order of its memory; `count` may be 0.
  struct Range {
    int64_t begin, count;
  };
  /// Those of parameter `index` that this rank owns.
  Range own_range(size_t index) const;
  /// They: a view [count].
  Tensor own_elements(size_t index) const;
  /// They, in a buffer that is as long.
  Tensor own_elements(size_t index, const Tensor& buffer) const;
  /// The same elements in this rank's part of such a buffer.
  Tensor own_elements_of_part(size_t index, const Tensor& part) const;
  /// All elements of parameter `index` in a buffer that is as long, with the parameter's shape and strides: a view.
  Tensor whole(size_t index, const Tensor& buffer) const;
  /// The shape of parameter `index`, and its strides, in the buffer.
  at::IntArrayRef sizes(size_t index) const { return places_[index].sizes; }
  at::IntArrayRef strides(size_t index) const { return places_[index].strides; }
  /// Gives each parameter that is in the buffer memory that it shares with no other, on `device`. Afterwards there
  /// is no buffer.
  void release(at::Device device) noexcept;

 private:
  // Parameters may have other shapes while ranks of an axis `tensor` have joined their parts.
  struct Place {
    int64_t begin, numel;
    std::vector<int64_t> sizes, strides;
  };
  std::vector<NamedParameter> parameters_;
  std::vector<Place> places_;  // of the parameters in the buffer
  int64_t rank_, part_ = 0, numel_ = 0;
  Tensor buffer_, kept_part_;
};

}  // namespace fulgur::detail
