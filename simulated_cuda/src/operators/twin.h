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
/// memory that each launch of the graph fills before its kernels run, so it is read when the work runs.
struct RandomState {
  bool used = false;
  at::PhiloxCudaState philox;
  std::pair<uint64_t, uint64_t> seed_and_offset() const;
};

/// A call of the same operation on the CPU. `arguments` are CPU views of the call's tensors. The results replace them,
/// in order; if a result is undefined, the previous value is kept. `outputs` are views of the tensors that the host
/// code of the CUDA kernel returned.
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
  instead,  ///< only the twin runs: the host code needs functions of a library that its stand-in does not have
  synchronizing,  ///< only the twin runs, after a wait of the host, as in the kernel: the size of the results depends
                  ///< on data
  copy,           ///< like `beside` if source and target are on one device; otherwise the runtime's copy is correct
};

struct HandWritten {
  Mode mode = Mode::beside;
  Twin twin;
};
/// Twins of operations without a CPU kernel, and of operations that draw random numbers. The key is the name with the
/// overload.
using HandWrittenTwins = std::map<std::string, HandWritten>;

/// A sparse operation composed of dense ones. Replaces the arguments on the stack by its results; returns false if it
/// does not support these arguments.
using SparseTwin = std::function<bool(torch::jit::Stack&)>;
/// The key is the name with the overload, without `aten::`.
const std::map<std::string, SparseTwin>& sparse_twins();

void add_random_twins(HandWrittenTwins& twins);
void add_recurrent_twins(HandWrittenTwins& twins);
void add_layer_twins(HandWrittenTwins& twins);
void add_norm_twins(HandWrittenTwins& twins);
void add_convolution_twins(HandWrittenTwins& twins);
void add_attention_twins(HandWrittenTwins& twins);
void add_optimizer_twins(HandWrittenTwins& twins);

}  // namespace simulated_cuda
