#include "tensor/divided_values.h"

#include <ATen/core/Tensor.h>

#include <utility>

namespace fulgur::detail {

const DividedValues::Value* DividedValues::find(const Tensor& value) const {
  if (known_.empty() || !value.has_storage()) return nullptr;
  const auto found = known_.find(value.storage().unsafeGetStorageImpl());
  return found == known_.end() ? nullptr : &found->second.what;
}

bool DividedValues::View::is_of(const Tensor& value) const {
  return value.sizes() == at::IntArrayRef(sizes) && value.strides() == at::IntArrayRef(strides) &&
         value.storage_offset() == offset;
}

const Division* DividedValues::division(const Tensor& value) const {
  if (!value.has_storage()) return nullptr;
  const auto found = known_.find(value.storage().unsafeGetStorageImpl());
  if (found == known_.end()) return nullptr;
  for (const View& view : found->second.views)
    if (view.is_of(value)) return view.division ? &*view.division : nullptr;
  return nullptr;
}

void DividedValues::add(const Tensor& value, Value what, std::optional<Division> division) {
  if (!value.has_storage()) return;
  const c10::Storage& storage = value.storage();
  c10::StorageImpl* const memory = storage.unsafeGetStorageImpl();
  auto place = known_.find(memory);
  if (place == known_.end())
    place =
        known_
            .emplace(memory, Known{.memory = c10::weak_intrusive_ptr<c10::StorageImpl>(storage.getWeakStorageImpl()),
                                   .what = std::move(what),
                                   .views = {}})
            .first;
  Known& known = place->second;
  if (!division) return;
  for (View& view : known.views)
    if (view.is_of(value)) {
      // Views of the same elements that name another dimension, such as one of size 1.
      if (view.division != division) view.division.reset();
      return;
    }
  known.views.push_back({value.sizes().vec(), value.strides().vec(), value.storage_offset(), std::move(division)});
}

void DividedValues::forget_freed() {
  std::erase_if(known_, [](const auto& each) { return each.second.memory.expired(); });
}

}  // namespace fulgur::detail
