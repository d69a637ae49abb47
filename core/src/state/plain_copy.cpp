#include "fulgur/core/state/plain_copy.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstring>

namespace fulgur::detail {
namespace {

bool is_plain(const Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous() &&
         tensor.numel() < at::internal::GRAIN_SIZE && holds_its_values(tensor) && !tensor.is_quantized() &&
         !tensor.has_names();
}

void copy_bytes(const Tensor& to, const Tensor& from) {
  if (from.nbytes() > 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
}

}  // namespace

bool holds_its_values(const Tensor& tensor) {
  return !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor();
}

bool is_plain_copy(const Tensor& to, const Tensor& from) {
  return to.scalar_type() == from.scalar_type() && is_plain(to) && is_plain(from) && to.sizes() == from.sizes() &&
         !to.is_alias_of(from);
}

void copy_values(const Tensor& to, const Tensor& from, bool non_blocking) {
  if (!is_plain_copy(to, from)) {
    const at::NoGradGuard no_grad;
    Tensor(to).copy_(from, non_blocking);
    return;
  }
  copy_bytes(to, from);
  if (!to.is_inference()) to.unsafeGetTensorImpl()->bump_version();
}

Tensor clone_values(const Tensor& tensor) {
  if (!is_plain(tensor) || tensor.requires_grad()) return tensor.clone();
  Tensor copy =
      at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type(), at::kStrided, at::kCPU, false, std::nullopt);
  copy_bytes(copy, tensor);
  return copy;
}

}  // namespace fulgur::detail
