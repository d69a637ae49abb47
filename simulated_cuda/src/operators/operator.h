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
    Twin twin;            ///< none: the CPU kernel of the same operation
    bool random = false;  ///< draws numbers of a generator
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

/// An operation that would compute nothing: says so, but inside another that has a twin.
class RefusedOperator : public c10::OperatorKernel {
 public:
  explicit RefusedOperator(c10::SafeKernelFunction cuda_kernel) : cuda_kernel_(std::move(cuda_kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  c10::SafeKernelFunction cuda_kernel_;
};

/// An operation on tensors of another layout (sparse, nested, quantized): correct if it consists of other operations,
/// or moves no data; refused if it launches a kernel itself.
class LayoutOperator : public c10::OperatorKernel {
 public:
  LayoutOperator(c10::SafeKernelFunction cuda_kernel, SparseTwin twin)
      : cuda_kernel_(std::move(cuda_kernel)), twin_(std::move(twin)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  c10::SafeKernelFunction cuda_kernel_;
  SparseTwin twin_;  ///< only for a few operations
};

/// The host's read of a number. If a kernel's host code reads what a kernel inside it would have computed, the outer
/// operation waits as the real one does, and its twin alone gives the results.
///
/// Operations called by a kernel's host code launch and allocate as usual, but have no twin: that of the outer
/// operation computes all results.
class HostRead : public c10::OperatorKernel {
 public:
  explicit HostRead(c10::SafeKernelFunction cuda_kernel) : cuda_kernel_(std::move(cuda_kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  c10::SafeKernelFunction cuda_kernel_;
};

}  // namespace simulated_cuda
