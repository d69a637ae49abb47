#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/cuda/PhiloxCudaState.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace simulated_cuda {

/// Where a CUDA generator stood when a kernel that draws numbers was launched. In a captured graph it names memory that
/// each launch of the graph fills first, so it is read when the work runs.
struct RandomState {
  bool used = false;
  at::PhiloxCudaState philox;
  std::pair<uint64_t, uint64_t> seed_and_offset() const;
};

/// The same operation on the CPU. `arguments` are CPU views of the call's tensors, and the results replace them, in
/// order; an undefined result leaves what is there. `outputs` are views of the tensors that the CUDA kernel's host code
/// returned.
struct TwinCall {
  torch::jit::Stack& arguments;
  const torch::jit::Stack& outputs;
  const RandomState& random;

  const at::Tensor& tensor(size_t index) const { return arguments[index].toTensor(); }
  std::optional<at::Tensor> optional(size_t index) const {
    return arguments[index].isTensor() && tensor(index).defined() ? std::optional(tensor(index)) : std::nullopt;
  }
  double number(size_t index) const {
    return arguments[index].isInt() ? static_cast<double>(arguments[index].toInt()) : arguments[index].toDouble();
  }
};
using Twin = std::function<void(const TwinCall&)>;

/// How an operation gets its numbers.
enum class Mode {
  beside,   ///< the CUDA kernel's host code runs (allocations, launches, waits), then the twin computes on the stream
  instead,  ///< the twin alone: the host code needs more of a library than its stand-in has
  synchronizing,  ///< the twin alone, after a wait of the host as in the kernel: results whose size depends on the data
  copy,           ///< beside where both ends are on one device; else the runtime's copies are right as they are
};

struct HandWritten {
  Mode mode = Mode::beside;
  Twin twin;
};
/// Twins of operations that have no CPU kernel, and of those that draw numbers, by name with overload.
using HandWrittenTwins = std::map<std::string, HandWritten>;

/// A sparse operation made of dense ones: replaces the arguments on the stack by its results; false if it is not for
/// these arguments.
using SparseTwin = std::function<bool(torch::jit::Stack&)>;
/// By name with overload, without `aten::`.
const std::map<std::string, SparseTwin>& sparse_twins();

void add_random_twins(HandWrittenTwins& twins);
void add_recurrent_twins(HandWrittenTwins& twins);
void add_norm_twins(HandWrittenTwins& twins);
void add_convolution_twins(HandWrittenTwins& twins);
void add_attention_twins(HandWrittenTwins& twins);
void add_optimizer_twins(HandWrittenTwins& twins);

}  // namespace simulated_cuda
