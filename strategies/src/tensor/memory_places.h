#pragma once

#include <map>
#include <optional>
#include <unordered_map>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// Finds tensors by their memory, of which several may be in one storage.
class MemoryPlaces {
 public:
  void add(const Tensor& tensor, size_t number);
  /// Forgets all tensors in the storage of this one, which may be freed.
  void forget_storage(const Tensor& tensor);
  /// The number of the tensor in whose memory this one begins; nullopt: of none.
  std::optional<size_t> find(const Tensor& tensor) const;
  bool empty() const { return by_storage_.empty(); }

 private:
  struct Place {
    size_t end, number;  // in bytes
  };
  std::unordered_map<const c10::StorageImpl*, std::map<size_t, Place>> by_storage_;  // by the first byte
};

}  // namespace fulgur::detail
