#include "sharding/storages.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <utility>

namespace fulgur::detail {

c10::Storage unreadable_storage(const c10::Storage& like, std::string message) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), like.nbytes(),
                                                       at::DataPtr(nullptr, like.device()), /*allocator=*/nullptr,
                                                       /*resizable=*/false);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
  return c10::Storage(std::move(storage));
}

c10::Storage empty_storage(const c10::Storage& like) {
  const at::Device device = like.device();
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, at::DataPtr(nullptr, device), c10::GetAllocator(device.type()),
      /*resizable=*/false));
}

void fill_storage(const c10::Storage& storage, size_t bytes) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  impl.set_data_ptr_noswap(impl.allocator()->allocate(bytes));
  impl.set_nbytes(bytes);
}

void clear_storage(const c10::Storage& storage) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  impl.set_data_ptr_noswap(at::DataPtr(nullptr, impl.device()));
  impl.set_nbytes(size_t{0});
}

void set_storage(const Tensor& tensor, const c10::Storage& storage) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const bool allowed = impl.allow_tensor_metadata_change();
  impl.set_allow_tensor_metadata_change(true);
  impl.set_storage_keep_dtype(storage);
  impl.set_allow_tensor_metadata_change(allowed);
}

}  // namespace fulgur::detail
