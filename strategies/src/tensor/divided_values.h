#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// What the ranks have of a value.
enum class ValueParts {
  features,    ///< parts of what a layer divided by column computes, and of what follows from it
  vocabulary,  ///< parts of the classes of logits, in the last dimension
  tokens,      ///< parts of the dimension before the last
};

/// What of a tensor this rank has.
struct Division {
  int64_t dim = 0;  ///< of which each rank has consecutive elements
  /// The sizes of the parts of this dimension, of each of which the ranks have a share; empty: it has one.
  std::vector<int64_t> parts = {};
  int64_t unit = 1;  ///< the elements from `dim` on that no rank divides, such as those of a head
  bool operator==(const Division&) const = default;
};

/// The values of a forward of which each rank has a part, by their memory, so that views of them are known too. Memory
/// that is freed is forgotten.
class DividedValues {
 public:
  struct Value {
    ValueParts parts = ValueParts::features;
    std::string layer;   ///< that has divided them
    int64_t tokens = 0;  ///< of all ranks
  };
  /// nullptr: all ranks have it.
  const Value* find(const Tensor& value) const;
  /// What is divided in a view that has been added; nullptr: it cannot be told.
  const Division* division(const Tensor& value) const;
  /// Values of parts of tokens have no division.
  void add(const Tensor& value, Value what, std::optional<Division> division = std::nullopt);
  void forget_freed();

 private:
  struct View {
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;
    std::optional<Division> division;  ///< nullopt: two have been added
    bool is_of(const Tensor& value) const;
  };
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;  ///< keeps the address from being used again
    Value what;
    std::vector<View> views;
  };
  std::unordered_map<const c10::StorageImpl*, Known> known_;
};

}  // namespace fulgur::detail
