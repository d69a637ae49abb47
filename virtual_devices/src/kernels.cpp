#include "registrations.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <tuple>

#include "cpu_kernels.h"
#include "device_allocator.h"
#include "device_table.h"
#include "guard.h"

namespace fulgur::virtual_devices {
namespace {

using at::Tensor;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device && device->has_index() ? device : std::nullopt);
  return at::detail::empty_generic(size, &allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device && device->has_index() ? device : std::nullopt);
  return at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, c10::dtype_or_default(dtype));
}

Tensor view_over(const Tensor& tensor) { return tensor.device().is_privateuseone() ? on_cpu(tensor) : tensor; }

// The copy is counted if it goes from one device to another. It occupies the receiving device.
Tensor& copy_(Tensor& to, const Tensor& from, bool non_blocking) {
  if (from.device() != to.device())
    DeviceTable::instance().count_copy(from.device(), to.device(), static_cast<int64_t>(from.nbytes()));
  const AtWork at_work(to.device().is_privateuseone() ? to.device() : from.device());
  Tensor target = view_over(to);
  at::native::copy_(target, view_over(from), non_blocking);
  return to;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  Tensor target = to;
  return copy_(target, from, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// Reading a number is a copy to the CPU.
at::Scalar local_scalar_dense(const Tensor& self) {
  DeviceTable::instance().count_copy(self.device(), at::kCPU, self.element_size());
  return on_cpu(self).item();
}

Tensor& set_storage_(Tensor& self, c10::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

// Convolutions choose their kernels by device; this one serves unknown devices.
Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                   int64_t groups) {
  const AtWork at_work(input.device());
  const std::optional<Tensor> cpu_bias = bias && bias->defined() ? std::optional(on_cpu(*bias)) : std::nullopt;
  return on_device(at::convolution(on_cpu(input), on_cpu(weight), cpu_bias, stride, padding, dilation, transposed,
                                   output_padding, groups),
                   input.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gradient, const Tensor& input,
                                                        const Tensor& weight, at::IntArrayRef stride,
                                                        at::IntArrayRef padding, at::IntArrayRef dilation,
                                                        bool transposed, at::IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> mask) {
  const AtWork at_work(input.device());
  const int64_t bias = transposed ? weight.size(1) * groups : weight.size(0);
  auto [to_input, to_weight, to_bias] =
      at::convolution_backward(on_cpu(gradient), on_cpu(input), on_cpu(weight), at::OptionalIntArrayRef({bias}), stride,
                               padding, dilation, transposed, output_padding, groups, mask);
  const auto back = [&](const Tensor& tensor) { return tensor.defined() ? on_device(tensor, input.device()) : tensor; };
  return {back(to_input), back(to_weight), back(to_bias)};
}

// The CPU's kernel would draw from the process's generator, but each device has its own.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true))
    return {input.clone(), at::empty_like(input, input.options().dtype(at::kBool)).fill_(true)};
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0.0 : 1 / (1 - p)), mask};
}

// This backend is missing from LibTorch's list of backends whose tensors a parameter may take over, so `Module::to`
// would not move it here. They are plain tensors, in the same memory.
bool has_compatible_shallow_copy_type(const Tensor&, const Tensor&) { return true; }

torch::CppFunction cpu() { return torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>(); }

}  // namespace

void register_kernels() {
  // Kept until the process ends: tensors may outlive every static object.
  static auto& all = *new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  all.fallback(cpu());
  static auto& aten =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  aten.impl("empty.memory_format", &empty);
  aten.impl("empty_strided", &empty_strided);
  aten.impl("as_strided", &at::native::as_strided_tensorimpl);
  aten.impl("view", &at::native::view);
  aten.impl("_reshape_alias", &at::native::_reshape_alias);
  aten.impl("resize_", &at::native::resize_);
  aten.impl("copy_", &copy_);
  aten.impl("_copy_from", &copy_from);
  aten.impl("_copy_from_and_resize", &copy_from_and_resize);
  aten.impl("_local_scalar_dense", &local_scalar_dense);
  aten.impl("set_.source_Storage", &at::native::set_);
  aten.impl("set_.source_Storage_storage_offset", &set_storage_);
  aten.impl("set_.source_Tensor", &at::native::set_tensor_);
  aten.impl("convolution_overrideable", &convolution);
  aten.impl("convolution_backward_overrideable", &convolution_backward);
  aten.impl("native_dropout", &native_dropout);
  // The `out` variant of the CPU's kernel would warn that it resizes the output.
  aten.impl("mse_loss", cpu());
  static auto& autograd =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  autograd.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  aten.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

}  // namespace fulgur::virtual_devices
