#include "fulgur/core/state/let_go.h"

#include <ATen/core/Tensor.h>

#include <exception>

namespace fulgur {
namespace {

// Whether the memory is freed when `tensor` is destroyed. A view made in grad mode keeps its base.
bool is_last_holder(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.use_count() != 1) return false;
  if (!tensor.is_view()) return tensor.storage().use_count() == 1;
  return tensor.TensorBase::_base().use_count() == 1 && tensor.storage().use_count() == 2;
}

}  // namespace

void let_go(Tensor& tensor) noexcept {
  if (is_last_holder(tensor)) {
    // Its destructor would call this function, and may not throw.
    c10::DataPtr memory = tensor.storage().set_data_ptr(c10::DataPtr(nullptr, tensor.device()));
    const c10::DeleterFnPtr free = memory.get_deleter();
    void* const context = memory.release_context();
    try {
      if (context && free) free(context);
    } catch (const std::exception&) {
      // The device has failed; the code that waits for it reports the failure.
    }
  }
  tensor.reset();
}

void let_go(Batch& batch) noexcept {
  for (auto& [name, value] : batch) {
    if (auto* tensor = std::get_if<Tensor>(&value)) let_go(*tensor);
    if (auto* list = std::get_if<std::vector<Tensor>>(&value))
      for (Tensor& tensor : *list) let_go(tensor);
  }
  batch.clear();
}

}  // namespace fulgur
