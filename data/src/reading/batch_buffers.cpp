#include "reading/batch_buffers.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

namespace fulgur {
namespace {

c10::Storage allocate(size_t bytes) {
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, c10::GetCPUAllocator(), /*resizable=*/true);
}

Tensor tensor_over(const c10::Storage& storage, at::IntArrayRef sizes, caffe2::TypeMeta dtype) {
  Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                           c10::DispatchKeySet(c10::DispatchKey::CPU), dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

bool is_plain(const Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() && tensor.dim() > 0;
}

}  // namespace

BatchBuffers::BatchBuffers(Batch prototype, int64_t rows, size_t limit, bool pinned)
    : prototype_(std::move(prototype)), rows_(rows), limit_(limit), pinned_(pinned) {
  for (const auto& [name, value] : prototype_) {
    const auto* tensor = std::get_if<Tensor>(&value);
    // A copy to the device may still be reading a pinned batch when its last tensor is destroyed. LibTorch's pinned
    // memory allocator waits for such copies; a ring would not.
    const bool ours = tensor != nullptr && is_plain(*tensor) && !pinned_ && tensor->size(0) == 1;
    row_bytes_.push_back(ours ? static_cast<size_t>(tensor->numel()) * tensor->element_size() : 0);
  }
}

BatchBuffers::Storages& BatchBuffers::free_storages() {
  for (size_t tried = 0; tried < ring_.size(); ++tried) {
    Storages& storages = ring_[next_ = (next_ + 1) % ring_.size()];
    bool free = true;
    for (size_t i = 0; i < storages.size() && free; ++i)
      free = row_bytes_[i] == 0 ||
             (storages[i].use_count() == 1 && storages[i].nbytes() >= row_bytes_[i] * static_cast<size_t>(rows_));
    if (!free) continue;
    // The count is read with relaxed ordering. Incrementing and decrementing it is ordered after the release by the
    // previous owner.
    for (const c10::Storage& storage : storages) [[maybe_unused]] const c10::Storage counted = storage;
    return storages;
  }
  if (ring_.size() < limit_) {
    ring_.emplace_back();
    next_ = ring_.size() - 1;
  } else {
    next_ = (next_ + 1) % ring_.size();
  }
  Storages fresh;
  for (const size_t bytes : row_bytes_)
    fresh.push_back(bytes == 0 ? c10::Storage() : allocate(bytes * static_cast<size_t>(rows_)));
  // The previous memory now belongs to its remaining holders.
  ring_[next_] = std::move(fresh);
  return ring_[next_];
}

Batch BatchBuffers::take(int64_t rows) {
  Batch batch;
  const Storages& storages = free_storages();
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < prototype_.entries(); ++i) {
    const auto& [name, value] = prototype_.entry(i);
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      sizes.assign(tensor->sizes().begin(), tensor->sizes().end());
      sizes.at(0) = rows;
      if (row_bytes_[i] > 0)
        batch.add(name, tensor_over(storages[i], sizes, tensor->dtype()));
      else
        batch.add(name,
                  at::empty(sizes, tensor->options().requires_grad(false).pinned_memory(pinned_ && tensor->is_cpu())));
    } else if (std::holds_alternative<std::vector<Tensor>>(value)) {
      batch.add(name, std::vector<Tensor>(static_cast<size_t>(rows)));
    } else {
      batch.add(name, std::vector<std::string>(static_cast<size_t>(rows)));
    }
  }
  return batch;
}

}  // namespace fulgur
