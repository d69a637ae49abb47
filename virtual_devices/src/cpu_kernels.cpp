#include "cpu_kernels.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorImpl.h>

#include <optional>
#include <utility>
#include <vector>

#include "device_allocator.h"
#include "device_table.h"

namespace fulgur::virtual_devices {
namespace {

// One call of an operation: its tensors, each with the CPU tensor that stands for it.
class Call {
 public:
  explicit Call(const c10::OperatorHandle& operation) : operation_(operation) {}

  c10::IValue argument(const c10::IValue& value) {
    if (value.isTensor()) return stand_in(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(stand_in(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
        list.push_back(tensor ? std::optional(stand_in(*tensor)) : std::nullopt);
      return list;
    }
    if (value.isDevice() && value.toDevice().is_privateuseone()) {
      use(value.toDevice());
      return at::Device(at::kCPU);
    }
    return value;
  }

  c10::IValue result(const c10::IValue& value) {
    if (value.isTensor()) return original(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(original(tensor));
      return list;
    }
    return value;
  }

  // Applies to the device's tensors what an `out` variant has resized, or moved to other memory.
  void give_back_resized() {
    for (auto& [given, cpu] : pairs_) {
      if (cpu.sizes() == given.sizes() && cpu.strides() == given.strides() &&
          cpu.storage().data() == given.storage().data())
        continue;
      const at::Tensor made = on_device(cpu, *device_);
      given.unsafeGetTensorImpl()->set_storage_keep_dtype(made.storage());
      given.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
    }
  }

  std::optional<at::Device> device() const { return device_; }

 private:
  void use(at::Device device) {
    if (!device.has_index()) device = virtual_device(0);
    if (device_ && *device_ != device)
      C10_THROW_ERROR(Error, c10::str("Expected all tensors to be on the same device, but found at least two devices, ",
                                      *device_, " and ", device, "! (in ", operation_.schema().name(), ")"));
    device_ = device;
  }

  at::Tensor stand_in(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!tensor.device().is_privateuseone()) {
      if (tensor.dim() > 0) other_ = tensor.device();
      check_other();
      return tensor;
    }
    use(tensor.device());
    check_other();
    for (const auto& [given, cpu] : pairs_)
      if (given.is_same(tensor)) return cpu;
    pairs_.emplace_back(tensor, on_cpu(tensor));
    return pairs_.back().second;
  }

  // Called for each argument, since they come in any order.
  void check_other() const {
    if (device_ && other_)
      C10_THROW_ERROR(Error, c10::str("Expected all tensors to be on the same device, but found at least two devices, ",
                                      *device_, " and ", *other_, "! (in ", operation_.schema().name(), ")"));
  }

  at::Tensor original(const at::Tensor& result) const {
    if (!result.defined() || !device_) return result;
    for (const auto& [given, cpu] : pairs_)
      if (cpu.is_same(result)) return given;
    // The result is a view of an argument.
    for (const auto& [given, cpu] : pairs_)
      if (cpu.storage().unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl()) {
        at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
            c10::Storage(given.storage()), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), result.dtype());
        view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
        return view;
      }
    return on_device(result, *device_);
  }

  const c10::OperatorHandle& operation_;
  std::optional<at::Device> device_, other_;
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

}  // namespace

at::Tensor on_cpu(const at::Tensor& on_device) {
  const c10::Storage& mine = on_device.storage();
  // The caller, who has the tensor, keeps the memory alive.
  c10::Storage shared(c10::Storage::use_byte_size_t(), mine.nbytes(),
                      c10::DataPtr(mine.mutable_data(), at::Device(at::kCPU)), c10::GetAllocator(at::kCPU),
                      /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(shared), c10::DispatchKeySet(c10::DispatchKey::CPU), on_device.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(on_device.sizes(), on_device.strides(),
                                                      on_device.storage_offset());
  if (on_device.is_conj()) tensor._set_conj(true);
  if (on_device.is_neg()) tensor._set_neg(true);
  return tensor;
}

at::Tensor on_device(const at::Tensor& of_cpu, at::Device device) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      take_storage(of_cpu.storage(), device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), of_cpu.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(of_cpu.sizes(), of_cpu.strides(), of_cpu.storage_offset());
  return tensor;
}

void run_on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto& schema = operation.schema();
  const size_t count = schema.arguments().size();
  Call call(operation);
  // Some kernels draw random numbers, for which each device has a generator. It is set later: the device is known only
  // after the last argument.
  std::optional<size_t> generator_at;
  auto arguments = torch::jit::last(*stack, count);
  std::vector<c10::IValue> given;
  given.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    given.push_back(call.argument(arguments[i]));
    if (arguments[i].isNone() && schema.arguments()[i].type()->str() == "Generator?") generator_at = i;
  }
  torch::jit::drop(*stack, count);
  if (generator_at && call.device()) given[*generator_at] = DeviceTable::instance()[call.device()->index()].generator;
  for (c10::IValue& value : given) stack->push_back(std::move(value));
  {
    std::optional<AtWork> at_work;
    if (call.device()) at_work.emplace(*call.device());
    operation.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.give_back_resized();
  const size_t results = schema.returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); ++i) (*stack)[i] = call.result((*stack)[i]);
}

}  // namespace fulgur::virtual_devices
