#include "fulgur/core/state/stored_values.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

uint32_t version_of(const Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

class ChangedValues final : public StoredValues {
 public:
  ChangedValues(c10::intrusive_ptr<StoredValues> of, std::function<Tensor(const Tensor&)> change)
      : of_(std::move(of)), change_(std::move(change)) {}
  Tensor read() const override { return change_(of_->read()); }

 private:
  c10::intrusive_ptr<StoredValues> of_;
  std::function<Tensor(const Tensor&)> change_;
};

// A tensor that is there already, and that nothing else may write until it is read.
class HeldValues final : public StoredValues {
 public:
  explicit HeldValues(const Tensor& values) : values_(values.detach()), version_(version_of(values_)) {}
  Tensor read() const override {
    if (version_of(values_) != version_)
      throw Error(
          cat("[core] values of shape ", shape_text(values_.sizes()),
              " were given to a parameter that is created later, and have changed since. Give it a copy of them."));
    return values_.cpu().clone();
  }

 private:
  Tensor values_;
  uint32_t version_;
};

}  // namespace

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

void set_stored_values(const Tensor& tensor, c10::intrusive_ptr<StoredValues> values) {
  if (!tensor.is_meta()) throw Error("[core] only a tensor on meta can stand for stored values");
  values->version_ = version_of(tensor);
  tensor.unsafeGetTensorImpl()->set_backend_meta(std::move(values));
}

Tensor changed_values(const Tensor& tensor, std::function<Tensor(const Tensor&)> change) {
  auto values = stored_values(tensor);
  Tensor changed = change(tensor);
  if (!values) return changed;
  values->check_unwritten(tensor);
  return stand_in(changed, c10::make_intrusive<ChangedValues>(std::move(values), std::move(change)));
}

void assign_values(const Tensor& target, const Tensor& source) {
  if (!stored_values(target)) {
    const at::NoGradGuard no_grad;
    target.copy_(read_now(source));
    return;
  }
  if (source.sizes() != target.sizes())
    throw Error(cat("[core] values of shape ", shape_text(source.sizes()), " cannot be those of a tensor of shape ",
                    shape_text(target.sizes())));
  auto values = stored_values(source);
  if (!values) values = c10::make_intrusive<HeldValues>(source);
  const auto dtype = target.scalar_type();
  const std::vector<int64_t> sizes = target.sizes().vec(), strides = target.strides().vec();
  const bool is_alike = source.scalar_type() == dtype && source.strides() == target.strides();
  // Also if they are alike: `source` still stands for its own.
  values = c10::make_intrusive<ChangedValues>(std::move(values), [=](const Tensor& whole) {
    return is_alike ? whole : at::empty_strided(sizes, strides, whole.options().dtype(dtype)).copy_(whole);
  });
  set_stored_values(target, std::move(values));
}

void replace_data(const Tensor& tensor, const Tensor& data) {
  if (tensor.is_meta() != data.is_meta()) tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
  // Drops the node that accumulates gradients, if it is that of another device.
  tensor.set_data(data);
  if (auto values = stored_values(tensor)) set_stored_values(tensor, std::move(values));
}

c10::intrusive_ptr<StoredValues> stored_values(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta()) return {};
  auto* const values = dynamic_cast<StoredValues*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
  return c10::intrusive_ptr<StoredValues>::reclaim_copy(values);
}

Tensor read_now(const Tensor& tensor) {
  const auto values = stored_values(tensor);
  if (!values) return tensor;
  values->check_unwritten(tensor);
  return values->read();
}

void StoredValues::check_unwritten(const Tensor& tensor) const {
  if (version_of(tensor) != version_)
    throw Error(cat(
        "[core] values were written to a parameter of shape ", shape_text(tensor.sizes()),
        " that gets its memory later, when the run divides it, and they would be lost. Write them in the constructor "
        "of the module, on the thread that calls it, or after the run has begun, or let the module be created with "
        "memory: trainer.strategy.deferred_init: false."));
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
