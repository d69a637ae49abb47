#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <unordered_map>

namespace simulated_cuda {

/// CPU tensors that use the memory of CUDA tensors, with one storage for each of theirs, so that overlaps are
/// preserved. Like a kernel's arguments, they do not own memory.
class CpuViews {
 public:
  at::Tensor of(const at::Tensor& tensor);
  /// Views of a tensor or of a list of tensors. A CUDA device becomes the CPU; a generator is removed.
  c10::IValue of(const c10::IValue& value);

 private:
  std::unordered_map<c10::StorageImpl*, c10::Storage> storages_;
};

/// Calls `visit` with each defined tensor of an argument.
template <class F>
void for_each_tensor(const c10::IValue& value, F visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList())
      if (tensor.defined()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList())
      if (tensor && tensor->defined()) visit(*tensor);
  }
}

}  // namespace simulated_cuda
