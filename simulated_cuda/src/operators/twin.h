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

/// The position of a CUDA generator when a kernel that draws numbers was launched. In a captured graph it refers to
/// memory that each launch of the graph fills first, so it is read when the work runs.
struct RandomState {
  bool used = false;
  at::PhiloxCudaState philox;
  std::pair<uint64_t, uint64_t> seed_and_offset() const;
};

/// The same operation on the CPU. `arguments` are CPU views of the call's tensors, and the results replace them, in
/// order; an undefined result leaves the old value. `outputs` are views of the tensors that the CUDA kernel's host code
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

/// How an operation gets its results.
enum class Mode {
  beside,   ///< the CUDA kernel's host code runs (allocations, launches, waits), then the twin computes on the stream
  instead,  ///< only the twin: the host code needs more of a library than its stand-in has
  synchronizing,  ///< only the twin, after a wait of the host as in the kernel: results whose size depends on the data
  copy,           ///< like beside if both ends are on one device; else the runtime's copies are already correct
};

struct HandWritten {
  Mode mode = Mode::beside;
  Twin twin;
};
/// Twins of operations without a CPU kernel, and of those that draw random numbers, by name with overload.
using HandWrittenTwins = std::map<std::string, HandWritten>;

/// A sparse operation made of dense ones: replaces the arguments on the stack by its results; false if it is not for
/// these arguments.
using SparseTwin = std::function<bool(torch::jit::Stack&)>;
/// By name with overload, without `aten::`.
const std::map<std::string, SparseTwin>& sparse_twins();

void add_random_twins(HandWrittenTwins& twins);
void add_recurrent_twins(HandWrittenTwins& twins);
void add_layer_twins(HandWrittenTwins& twins);
void add_norm_twins(HandWrittenTwins& twins);
void add_convolution_twins(HandWrittenTwins& twins);
void add_attention_twins(HandWrittenTwins& twins);
void add_optimizer_twins(HandWrittenTwins& twins);

}  // namespace simulated_cuda
