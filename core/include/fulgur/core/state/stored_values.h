#pragma once

#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <functional>

#include "fulgur/core/export.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur {

/// Values of a tensor that are elsewhere, such as in a file, or that are computed when they are needed. A tensor on
/// `meta` stands for them (`stand_in`); what computes with it fails, since it has no values.
class FULGUR_API StoredValues : public c10::BackendMeta {
 public:
  ~StoredValues() override;
  /// The tensor, on the CPU, in memory that it shares with no other. Throws a CheckpointError if it is in a file that
  /// cannot be read.
  virtual Tensor read() const = 0;
  /// Its elements `begin` to `begin + count`, in the order of their memory: a vector [count].
  virtual Tensor read_range(int64_t begin, int64_t count) const;

 private:
  friend FULGUR_API void set_stored_values(const Tensor&, c10::intrusive_ptr<StoredValues>);
  friend FULGUR_API Tensor read_now(const Tensor&);
  friend FULGUR_API Tensor changed_values(const Tensor&, std::function<Tensor(const Tensor&)>);
  void check_unwritten(const Tensor& tensor) const;
  uint32_t version_ = 0;  // of the tensor that stands for them, as it was then
};

/// A tensor that stands for `values`: like `whole`, which is dense and on `meta`.
FULGUR_API Tensor stand_in(const Tensor& whole, c10::intrusive_ptr<StoredValues> values);
/// The values for which a tensor stands; null if it has its own.
FULGUR_API c10::intrusive_ptr<StoredValues> stored_values(const Tensor& tensor);
/// The tensor for which a tensor stands; other tensors as they are. Throws an Error if something has been written to a
/// tensor that stands for another one, which has no effect on that.
FULGUR_API Tensor read_now(const Tensor& tensor);
/// Lets a tensor on `meta` stand for `values` from now on.
FULGUR_API void set_stored_values(const Tensor& tensor, c10::intrusive_ptr<StoredValues> values);
/// `change` of a tensor. If the tensor stands for another one, so does the result: `change` is called again with the
/// values when they are read. It must not depend on anything else.
FULGUR_API Tensor changed_values(const Tensor& tensor, std::function<Tensor(const Tensor&)> change);
/// Copies `source` into `target`, as `copy_` does. If `target` stands for values, it stands for those of `source`
/// afterwards, and no value is read.
FULGUR_API void assign_values(const Tensor& target, const Tensor& source);
/// `tensor.set_data(data)`, also if one of them is on `meta`, which LibTorch refuses, or stands for values.
FULGUR_API void replace_data(const Tensor& tensor, const Tensor& data);
/// A tree in which each tensor that stands for another one is replaced by it.
FULGUR_API StateTree read_now(const StateTree& tree);

}  // namespace fulgur
