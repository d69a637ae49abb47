#include "reused_memory.h"

#include <optional>

#include "fulgur/core/state/plain_copy.h"
#include "operator_rules.h"
#include "out_overload.h"

namespace fulgur::detail {
namespace {

using c10::IValue;

bool are_alike(const Tensor& one, const Tensor& other) {
  return one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes() && one.strides() == other.strides() &&
         holds_its_values(one) && holds_its_values(other);
}

}  // namespace

MadeMemories made_memories(const StorageUses& uses) {
  MadeMemories made;
  for (const auto& [storage, use] : uses)
    if (use.is_made)
      made.emplace(storage, MadeMemory{storage->nbytes(), use.number, use.first, use.last, use.is_shared()});
  return made;
}

Tensor ReusedMemory::placed(const Tensor& tensor) const {
  const auto found = tensor.defined() ? chosen_.find(storage_of(tensor)) : chosen_.end();
  if (found == chosen_.end()) return tensor;
  Tensor moved = frozen(tensor);
  moved.unsafeGetTensorImpl()->set_storage_keep_dtype(found->second.storage());
  return moved;
}

IValue ReusedMemory::placed(const IValue& value) const {
  bool is_moved = false;
  each_tensor(value, [&](const Tensor& tensor) { is_moved = is_moved || chosen_.contains(storage_of(tensor)); });
  if (!is_moved) return value;
  if (value.isTensor()) return placed(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(placed(tensor));
    return list;
  }
  c10::List<std::optional<Tensor>> list;
  for (const IValue& element : value.toListRef())
    list.push_back(element.isTensor() ? std::optional(placed(element.toTensor())) : std::nullopt);
  return list;
}

void ReusedMemory::try_reuse(const RecordedCall& call, size_t k, const c10::OperatorHandle& overload,
                             const std::vector<Tensor>& outputs,
                             const std::unordered_set<c10::StorageImpl*>& constants) {
  const auto rule = reusable_argument(call.op);
  if (!rule) return;
  const Tensor &result = outputs[rule->result], &given = call.arguments[rule->argument].toTensor();
  if (result.nbytes() == 0 || !are_alike(result, given) || !is_whole_memory(result) || !is_whole_memory(given)) return;
  c10::StorageImpl* const memory = storage_of(placed(given));
  const auto mine = made_.find(storage_of(result)), theirs = made_.find(memory);
  if (mine == made_.end() || theirs == made_.end() || constants.contains(memory)) return;
  if (mine->second.is_shared || theirs->second.is_shared || mine->second.first != k || theirs->second.last != k) return;
  int uses = 0;  // of the memory, by this call
  each_argument(call, [&](const Tensor& tensor) { uses += storage_of(placed(tensor)) == memory ? 1 : 0; });
  for (const Tensor& output : outputs) uses += storage_of(output) == storage_of(result) ? 1 : 0;
  if (uses != 2 || !out_gives_same_bits(call, overload, outputs, rule)) return;
  theirs->second.last = mine->second.last;
  chosen_.emplace(storage_of(result), placed(given));
  made_.erase(mine);
}

void ReusedMemory::free_replaced() const {
  for (const auto& [storage, tensor] : chosen_)
    storage->set_data_ptr_noswap(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
}

}  // namespace fulgur::detail
