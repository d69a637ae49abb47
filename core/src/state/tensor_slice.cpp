#include "fulgur/core/state/tensor_slice.h"

#include <c10/core/TensorImpl.h>

#include <utility>

namespace fulgur {
namespace {

struct SliceOfTensor final : c10::BackendMeta {
  explicit SliceOfTensor(TensorSlice of) : slice(std::move(of)) {}
  TensorSlice slice;
};

}  // namespace

void set_slice(const Tensor& whole, TensorSlice slice) {
  whole.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<SliceOfTensor>(std::move(slice)));
}

const TensorSlice* slice_of(const Tensor& whole) {
  if (!whole.defined() || !whole.is_meta()) return nullptr;
  const auto* const found = dynamic_cast<const SliceOfTensor*>(whole.unsafeGetTensorImpl()->get_backend_meta());
  return found ? &found->slice : nullptr;
}

}  // namespace fulgur
