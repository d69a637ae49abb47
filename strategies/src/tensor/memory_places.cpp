#include "tensor/memory_places.h"

#include <ATen/core/Tensor.h>

#include <iterator>

namespace fulgur::detail {
namespace {

size_t first_byte(const Tensor& tensor) { return static_cast<size_t>(tensor.storage_offset()) * tensor.element_size(); }

}  // namespace

void MemoryPlaces::add(const Tensor& tensor, size_t number) {
  const size_t begin = first_byte(tensor);
  by_storage_[tensor.storage().unsafeGetStorageImpl()].insert_or_assign(begin, Place{begin + tensor.nbytes(), number});
}

void MemoryPlaces::forget_storage(const Tensor& tensor) { by_storage_.erase(tensor.storage().unsafeGetStorageImpl()); }

std::optional<size_t> MemoryPlaces::find(const Tensor& tensor) const {
  if (!tensor.has_storage()) return std::nullopt;
  const auto storage = by_storage_.find(tensor.storage().unsafeGetStorageImpl());
  if (storage == by_storage_.end()) return std::nullopt;
  const size_t begin = first_byte(tensor);
  const auto after = storage->second.upper_bound(begin);
  if (after == storage->second.begin()) return std::nullopt;
  const Place& place = std::prev(after)->second;
  return begin < place.end ? std::optional(place.number) : std::nullopt;
}

}  // namespace fulgur::detail
