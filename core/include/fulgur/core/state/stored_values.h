#pragma once

#include <c10/core/TensorImpl.h>

#include <cstdint>

#include "fulgur/core/export.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur {

/// Values of a tensor that are elsewhere, such as in a file, and are read when they are needed. A tensor on `meta`
/// stands for them (`stand_in`); what computes with it fails, since it has no values.
class FULGUR_API StoredValues : public c10::BackendMeta {
 public:
  ~StoredValues() override;
  /// The tensor, on the CPU, in memory that it shares with no other. Throws a CheckpointError if it cannot be read.
  virtual Tensor read() const = 0;
  /// Its elements `begin` to `begin + count`, in the order of their memory: a vector [count].
  virtual Tensor read_range(int64_t begin, int64_t count) const;
};

/// A tensor that stands for `values`: like `whole`, which is dense and on `meta`.
FULGUR_API Tensor stand_in(const Tensor& whole, c10::intrusive_ptr<StoredValues> values);
/// The values for which a tensor stands; null if it has its own.
FULGUR_API c10::intrusive_ptr<StoredValues> stored_values(const Tensor& tensor);
/// The tensor for which a tensor stands; other tensors as they are.
FULGUR_API Tensor read_now(const Tensor& tensor);
/// A tree in which each tensor that stands for another one is replaced by it.
FULGUR_API StateTree read_now(const StateTree& tree);

}  // namespace fulgur
