#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <unordered_map>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// What the ranks have of a value.
enum class ValueParts {
  features,    ///< parts of what a layer divided by column computes, and of what follows from it
  vocabulary,  ///< parts of the classes of logits, in the last dimension
  tokens,      ///< parts of the dimension before the last
};

/// The values of a forward of which each rank has a part, by their memory, so that views of them are known too. Memory
/// that is freed is forgotten.
class DividedValues {
 public:
  struct Value {
    ValueParts parts = ValueParts::features;
    std::string layer;   ///< that has divided them
    int64_t tokens = 0;  ///< of all ranks
    /// Of the last dimension of a tensor, up to `dims` dimensions, in which it is what the layer divides; 0: it is not.
    int64_t width = 0, dims = 0;
    bool is_fused = false;  ///< whether the layer's rule names parts of its outputs
  };
  /// nullptr: all ranks have it.
  const Value* find(const Tensor& value) const;
  void add(const Tensor& value, Value what);
  /// Whether the last dimension of a tensor, `find(tensor) == &value`, is what the layer divides.
  static bool has_width(const Tensor& tensor, const Value& value) {
    return value.width > 0 && tensor.dim() > 0 && tensor.dim() <= value.dims && tensor.size(-1) == value.width;
  }
  void forget_freed();

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;  ///< keeps the address from being used again
    Value what;
  };
  std::unordered_map<const c10::StorageImpl*, Known> known_;
};

}  // namespace fulgur::detail
