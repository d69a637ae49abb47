#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

namespace fulgur::virtual_devices {

/// A CPU tensor over the same memory, for the CPU's kernels.
at::Tensor on_cpu(const at::Tensor& on_device);
/// Turns the result of a CPU kernel into a tensor of the device, without a copy.
at::Tensor on_device(const at::Tensor& of_cpu, at::Device device);

/// Runs any operation that has no kernel of its own: with the CPU's, over the same memory, the results on the device of
/// the arguments. Throws, as CUDA does, where tensors are on two devices; a number on the CPU goes along.
void run_on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

}  // namespace fulgur::virtual_devices
