#include "fulgur/core/state/stored_values.h"

#include <ATen/ops/empty_strided.h>

#include <utility>

namespace fulgur {

StoredValues::~StoredValues() = default;

Tensor StoredValues::read_range(int64_t begin, int64_t count) const {
  const Tensor whole = read();
  return whole.as_strided({count}, {1}, whole.storage_offset() + begin).clone();
}

Tensor stand_in(const Tensor& whole, c10::intrusive_ptr<StoredValues> values) {
  Tensor tensor = at::empty_strided(whole.sizes(), whole.strides(), whole.options().requires_grad(false));
  tensor.unsafeGetTensorImpl()->set_backend_meta(std::move(values));
  return tensor;
}

c10::intrusive_ptr<StoredValues> stored_values(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta()) return {};
  auto* const values = dynamic_cast<StoredValues*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
  return c10::intrusive_ptr<StoredValues>::reclaim_copy(values);
}

Tensor read_now(const Tensor& tensor) {
  const auto values = stored_values(tensor);
  return values ? values->read() : tensor;
}

StateTree read_now(const StateTree& tree) {
  if (tree.is_tensor()) return read_now(tree.tensor());
  if (tree.is_map()) {
    StateTree::Map map;
    for (const auto& [key, value] : tree.as_map()) map.emplace(key, read_now(value));
    return map;
  }
  if (tree.is_list()) {
    StateTree::List list;
    for (const StateTree& value : tree.as_list()) list.push_back(read_now(value));
    return list;
  }
  return tree;
}

}  // namespace fulgur
