#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// A call without a stack of boxed values.
class DirectCall {
 public:
  virtual ~DirectCall();
  virtual void run() = 0;
};

/// Gives each tensor of `to` the memory of the result at its place, and the result the former memory. Undefined tensors
/// of `to` are left out. Throws an Error if a result has another shape, stride or dtype.
void exchange_memory(const std::vector<Tensor>& to, std::span<const Tensor> results);

/// nullptr if the operation has no typed call (typed_operators.h).
std::unique_ptr<DirectCall> make_typed_call(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments,
                                            const std::vector<Tensor>& exchanged);
/// All bytes zero.
std::unique_ptr<DirectCall> make_clear(const Tensor& tensor);
/// `to.copy_(from)`, for is_plain_copy.
std::unique_ptr<DirectCall> make_plain_copy(const Tensor& to, const Tensor& from);
/// A small product of matrices with a bias for its columns (`addmm.out`): the bias is copied into the result, to which
/// the product is added in place, which LibTorch does, too, with the same bits. nullptr if the call is another one.
std::unique_ptr<DirectCall> make_bias_product(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments);
/// Adds a number to a float tensor with one element, as `add_` does.
std::unique_ptr<DirectCall> make_increment(const Tensor& tensor, float by);

}  // namespace fulgur::detail
