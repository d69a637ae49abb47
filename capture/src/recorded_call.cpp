#include "recorded_call.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_set>

namespace fulgur::detail {

std::string name_of(const c10::OperatorHandle& op) { return c10::toString(op.operator_name()); }

Tensor frozen(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                      /*allow_tensor_metadata_change=*/true));
}

c10::IValue frozen(const c10::IValue& value) {
  if (value.isTensor()) return frozen(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(frozen(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const c10::IValue& element : value.toListRef())
      list.push_back(element.isTensor() ? std::optional(frozen(element.toTensor())) : std::nullopt);
    return list;
  }
  return value;
}

c10::StorageImpl* storage_of(const Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

bool is_wrapped_number(const Tensor& tensor) { return tensor.unsafeGetTensorImpl()->is_wrapped_number(); }

bool is_whole_memory(const Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && tensor.storage_offset() == 0 &&
         tensor.nbytes() == tensor.storage().nbytes();
}

bool is_borrowed(const c10::StorageImpl& storage) {
  return storage.nbytes() > 0 && storage.device().is_cpu() && storage.data() && !storage.data_ptr().get_context();
}

bool writes_argument(const c10::OperatorHandle& op, size_t index) {
  const c10::Argument& argument = op.schema().arguments()[index];
  if (argument.alias_info() && argument.alias_info()->isWrite()) return true;
  // Running statistics and the noise of rrelu are written, but declared as if they were read only.
  const std::string& name = op.operator_name().name;
  if (name == "aten::native_batch_norm") return argument.name() == "running_mean" || argument.name() == "running_var";
  return name == "aten::rrelu_with_noise" && argument.name() == "noise";
}

StorageUses storage_uses(const std::vector<RecordedCall>& calls) {
  StorageUses uses;
  std::unordered_set<c10::TensorImpl*> counted;
  for (size_t k = 0; k < calls.size(); ++k) {
    const RecordedCall& call = calls[k];
    const auto see = [&](const Tensor& tensor, bool is_result) {
      c10::StorageImpl* const storage = storage_of(tensor);
      if (!storage) return;
      const auto [place, is_new] = uses.try_emplace(storage);
      StorageUse& use = place->second;
      if (is_new) {
        use.storage = tensor.storage();
        use.number = uses.size() - 1;
        use.first = k;
        use.is_made = is_result;
        use.example = tensor;
        if (is_result) use.last_writer = name_of(call.op);
      }
      use.last = k;
      use.used_bytes =
          std::max(use.used_bytes, at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                                                    tensor.storage_offset()));
      if (counted.insert(tensor.unsafeGetTensorImpl()).second) ++use.references;
    };
    each_argument(call, [&](const Tensor& tensor) { see(tensor, false); });
    each_result(call, [&](const Tensor& tensor) { see(tensor, true); });
    if (call.kind == CallKind::view) continue;
    each_written(call, [&](const Tensor& tensor) {
      if (c10::StorageImpl* const storage = storage_of(tensor)) {
        uses.at(storage).is_written = true;
        uses.at(storage).last_writer = name_of(call.op);
      }
    });
  }
  return uses;
}

}  // namespace fulgur::detail
