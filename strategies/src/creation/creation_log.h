#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// The operations on tensors that have no memory yet, in the order in which they were called: what computes the values
/// of such a tensor when they are needed. The tensors are on `meta`, and known by their memory, which they share with
/// their views. Reading is thread-safe once nothing is added any more.
class CreationLog {
 public:
  /// Whether the values of the tensor follow from the log.
  bool has(const Tensor& tensor) const;
  /// Adds the memory of a tensor on `meta`, whose values are undefined so far.
  void add_memory(const Tensor& tensor);
  /// Adds an operation that was computed on `meta`. Of the `arguments`, tensors with memory are copied, since they may
  /// change. `generator` is that of the operation as it was before, or undefined.
  void add(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments, std::span<const c10::IValue> results,
           const at::Generator& generator);
  /// The tensor with its values of now, on the CPU, in memory that it shares with no other.
  Tensor read(const Tensor& tensor) const { return compute(in_log(tensor)); }
  /// A tensor that `compute` knows, also after `tensor` is freed.
  Tensor in_log(const Tensor& tensor) const;
  Tensor compute(const Tensor& in_log) const;
  /// Memory that is in use, and the number of tensors that use it.
  struct Use {
    const c10::StorageImpl* memory;
    size_t tensors;
  };
  std::vector<Use> memory_in_use() const;

 private:
  struct Operation {
    c10::OperatorHandle op;
    std::vector<c10::IValue> arguments, results;  // with memory of the log
    std::vector<size_t> reads, writes, makes;     // memory
    std::optional<size_t> overwrites;             // memory whose earlier values no longer matter
    at::Generator generator;
  };
  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> of_module;  // keeps the address from being used again
    c10::Storage of_log;
  };
  using Values = std::unordered_map<size_t, c10::Storage>;  // by memory

  c10::IValue moved_to_log(const c10::IValue& value, std::vector<size_t>* found) const;
  /// The operations from which memory follows, in their order.
  std::vector<const Operation*> operations_of(size_t memory) const;
  Tensor with_values(const Tensor& in_log, Values& values) const;
  void execute(const Operation& operation, Values& values) const;

  std::vector<Memory> memory_;
  std::unordered_map<const c10::StorageImpl*, size_t> of_module_, of_log_;
  std::vector<Operation> operations_;
};

}  // namespace fulgur::detail
