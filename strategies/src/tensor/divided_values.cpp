#include "tensor/divided_values.h"

#include <utility>

namespace fulgur::detail {

const DividedValues::Value* DividedValues::find(const Tensor& value) const {
  if (known_.empty() || !value.has_storage()) return nullptr;
  const auto found = known_.find(value.storage().unsafeGetStorageImpl());
  return found == known_.end() ? nullptr : &found->second.what;
}

void DividedValues::add(const Tensor& value, Value what) {
  if (!value.has_storage()) return;
  const c10::Storage& storage = value.storage();
  c10::StorageImpl* const memory = storage.unsafeGetStorageImpl();
  known_.insert_or_assign(memory,
                          Known{.memory = c10::weak_intrusive_ptr<c10::StorageImpl>(storage.getWeakStorageImpl()),
                                .what = std::move(what)});
}

void DividedValues::forget_freed() {
  std::erase_if(known_, [](const auto& each) { return each.second.memory.expired(); });
}

}  // namespace fulgur::detail
