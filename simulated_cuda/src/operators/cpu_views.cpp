#include "cpu_views.h"

#include <ATen/TensorUtils.h>
#include <c10/core/Allocator.h>
#include <c10/core/TensorImpl.h>

namespace simulated_cuda {

at::Tensor CpuViews::of(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  // A kernel reads host scalars when it is launched, but pinned memory when it runs.
  if (!tensor.is_cuda()) return tensor.is_pinned() ? tensor : tensor.clone();
  c10::StorageImpl* const key = tensor.storage().unsafeGetStorageImpl();
  c10::Storage& storage = storages_[key];
  if (!storage)
    storage = c10::Storage(c10::Storage::use_byte_size_t(), key->nbytes(),
                           c10::DataPtr(key->mutable_data(), c10::Device(c10::kCPU)), c10::GetAllocator(c10::kCPU),
                           /*resizable=*/true);
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* const impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  return view;
}

c10::IValue CpuViews::of(const c10::IValue& value) {
  if (value.isTensor()) return of(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) list.push_back(of(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList())
      list.push_back(tensor ? std::optional(of(*tensor)) : std::nullopt);
    return list;
  }
  if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(c10::kCPU);
  if (value.isGenerator()) return {};
  return value;
}

}  // namespace simulated_cuda
