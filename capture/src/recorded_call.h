#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

enum class CallKind {
  view,      ///< the results share memory with an argument: metadata only
  allocate,  ///< memory without values
  in_place,  ///< all results are arguments
  makes,     ///< results in new memory
};

/// An operation as it was called. Tensors are detached copies that share the memory, so that neither autograd nor a
/// later change of metadata is seen.
struct RecordedCall {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments, results;
  CallKind kind = CallKind::in_place;
};

std::string name_of(const c10::OperatorHandle& op);
Tensor frozen(const Tensor& tensor);
c10::IValue frozen(const c10::IValue& value);
/// nullptr for a tensor without storage.
c10::StorageImpl* storage_of(const Tensor& tensor);
bool is_wrapped_number(const Tensor& tensor);
/// Whether the tensor uses all bytes of its storage, each once.
bool is_whole_memory(const Tensor& tensor);
/// Whether something else owns the memory, as for from_blob without a deleter.
bool is_borrowed(const c10::StorageImpl& storage);

/// `use` gets each defined tensor of the value.
template <class Use>
void each_tensor(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) use(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorVector())
      if (tensor.defined()) use(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef())
      if (element.isTensor() && element.toTensor().defined()) use(element.toTensor());
  }
}

/// Whether the operation writes into its argument `index`, also if its schema conceals that.
bool writes_argument(const c10::OperatorHandle& op, size_t index);

template <class Use>
void each_argument(const RecordedCall& call, const Use& use) {
  for (const c10::IValue& value : call.arguments) each_tensor(value, use);
}

template <class Use>
void each_result(const RecordedCall& call, const Use& use) {
  for (const c10::IValue& value : call.results) each_tensor(value, use);
}

template <class Use>
void each_written(const RecordedCall& call, const Use& use) {
  for (size_t i = 0; i < call.arguments.size(); ++i)
    if (writes_argument(call.op, i)) each_tensor(call.arguments[i], use);
}

/// The use of a storage in a recording.
struct StorageUse {
  c10::Storage storage;
  size_t number = 0;           ///< in the order of appearance
  size_t first = 0, last = 0;  ///< indices of calls
  bool is_made = false;        ///< first seen as a result; else it existed before
  bool is_written = false;     ///< by a call, apart from the one that made it
  int64_t references = 0;      ///< distinct tensors of the recording
  size_t used_bytes = 0;       ///< up to the end of its tensors: what follows may be scratch memory of a kernel
  std::string last_writer;     ///< the name of the last operation that wrote it
  Tensor example;              ///< the tensor with which it was first seen
  /// Whether something besides the recording refers to memory that the step made. (One reference is `storage`.)
  bool is_shared() const { return is_made && has_others(); }
  /// Whether something besides the recording, and besides `copies` of its copies, refers to the memory.
  bool has_others(int64_t copies = 0) const {
    return static_cast<int64_t>(storage.use_count()) > references + 1 + copies;
  }
};

using StorageUses = std::unordered_map<c10::StorageImpl*, StorageUse>;
StorageUses storage_uses(const std::vector<RecordedCall>& calls);

}  // namespace fulgur::detail
