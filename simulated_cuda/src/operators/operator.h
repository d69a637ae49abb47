#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "twin.h"

namespace simulated_cuda {

/// An operation's CUDA kernel with its twin.
class Operator : public c10::OperatorKernel {
 public:
  struct Description {
    std::string name;
    Mode mode = Mode::beside;
    Twin twin;            ///< if empty, the CPU kernel of the same operation is used
    bool random = false;  ///< the operation draws random numbers
  };
  Operator(c10::SafeKernelFunction cuda_kernel, Description description)
      : cuda_kernel_(std::move(cuda_kernel)), description_(std::move(description)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  void beside(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
              const std::vector<c10::IValue>& arguments, c10::Device device);
  void instead(const c10::OperatorHandle& op, torch::jit::Stack* stack, const std::vector<c10::IValue>& arguments,
               Mode mode);
  RandomState random_state(const std::vector<c10::IValue>& arguments, c10::Device device, uint64_t advance) const;
  void run_twin(const c10::OperatorHandle& op, torch::jit::Stack& arguments, const torch::jit::Stack& outputs,
                const RandomState& random) const;

  c10::SafeKernelFunction cuda_kernel_;
  Description description_;
};

/// An operation that would compute nothing. Throws an error, unless it is called inside another operation, whose twin
/// computes the results.
class RefusedOperator : public c10::OperatorKernel {
 public:
  explicit RefusedOperator(c10::SafeKernelFunction cuda_kernel) : cuda_kernel_(std::move(cuda_kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  c10::SafeKernelFunction cuda_kernel_;
};

/// An operation on tensors with another layout (sparse, nested, quantized). It is correct if it consists of other
/// operations, or if it moves no data; it is refused if it launches a kernel itself.
class LayoutOperator : public c10::OperatorKernel {
 public:
  LayoutOperator(c10::SafeKernelFunction cuda_kernel, SparseTwin twin)
      : cuda_kernel_(std::move(cuda_kernel)), twin_(std::move(twin)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  c10::SafeKernelFunction cuda_kernel_;
  SparseTwin twin_;  ///< empty for most operations
};

/// The operation by which the host reads a number. If a kernel's host code reads a value that a kernel inside it should
/// have computed, the outer operation waits, as on a GPU, and only its twin computes the results.
///
/// Operations that a kernel's host code calls launch and allocate as usual, but their twins do not run: the twin of the
/// outer operation computes all results.
class HostRead : public c10::OperatorKernel {
 public:
  explicit HostRead(c10::SafeKernelFunction cuda_kernel) : cuda_kernel_(std::move(cuda_kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  c10::SafeKernelFunction cuda_kernel_;
};

}  // namespace simulated_cuda
