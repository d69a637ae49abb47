#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

namespace fulgur::virtual_devices {

/// A CPU tensor over the same memory, for the CPU's kernels.
at::Tensor on_cpu(const at::Tensor& on_device);
/// Turns the result of a CPU kernel into a tensor of the device, without a copy.
at::Tensor on_device(const at::Tensor& of_cpu, at::Device device);

/// Runs an operation that has no kernel for the device with the CPU's kernel, over the same memory; results are on the
/// device of the arguments. Throws, as CUDA does, if tensors are on two devices; CPU tensors without dimensions are
/// accepted.
void run_on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

}  // namespace fulgur::virtual_devices
