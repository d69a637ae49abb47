#include "sharding/stepped_parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "distributed/process_group_impl.h"

namespace fulgur::detail {

SteppedParts::SteppedParts(const std::vector<std::unique_ptr<FlatUnit>>& units, const Copies& copies,
                           const std::vector<bool>& is_stepped, bool in_host_memory, at::Device device,
                           const std::function<Tensor(const Tensor&)>& whole_values)
    : units_(units), device_(device), in_host_memory_(in_host_memory), parts_(units.size()) {
  const at::NoGradGuard no_grad;
  const auto copy_of = [&](const NamedParameter& parameter) {
    const auto found = copies.find(parameter.value.unsafeGetTensorImpl());
    return found == copies.end() ? Tensor() : found->second.detach();
  };
  std::vector<size_t> made;
  std::vector<at::ScalarType> dtypes;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    at::ScalarType dtype = units[unit]->buffer().scalar_type();
    for (const NamedParameter& parameter : units[unit]->parameters())
      if (const Tensor copy = copy_of(parameter); copy.defined()) {
        parts_[unit].is_master = true;
        dtype = copy.scalar_type();
      }
    if (!parts_[unit].is_master && !(in_host_memory && is_stepped[unit])) continue;
    made.push_back(unit);
    dtypes.push_back(dtype);
  }
  std::vector<int64_t> bytes;
  if (in_host_memory)
    for (size_t i = 0; i < made.size(); ++i)
      // The values, and the gradients.
      bytes.insert(bytes.end(), 2, units[made[i]]->numel_of_part() * static_cast<int64_t>(c10::elementSize(dtypes[i])));
  const std::vector<PinnedSlabs::Place> places = memory_.place(bytes);
  for (size_t i = 0; i < made.size(); ++i) {
    const FlatUnit& flat = *units[made[i]];
    Part& part = parts_[made[i]];
    if (in_host_memory) {
      part.values = places[2 * i].as({flat.numel_of_part()}, dtypes[i]).zero_();
      part.gradients = places[2 * i + 1].as({flat.numel_of_part()}, dtypes[i]);
    } else {
      part.values = at::zeros({flat.numel_of_part()}, at::TensorOptions(device).dtype(dtypes[i]));
    }
    if (!part.is_master) {
      part.values.copy_(of_module(made[i]));
      part.written = checksum_.of(of_module(made[i]));
      continue;
    }
    for (size_t k = 0; k < flat.parameters().size(); ++k) {
      Tensor whole = copy_of(flat.parameters()[k]);
      if (!whole.defined()) continue;
      whole = whole_values(whole);
      if (const auto strides = flat.strides(k); whole.strides() != strides)
        whole = at::empty_strided(whole.sizes(), strides, whole.options()).copy_(whole);
      const auto [begin, count] = flat.own_range(k);
      own_elements(made[i], k).copy_(in_memory_order(whole).narrow(0, begin, count));
    }
  }
}

Tensor SteppedParts::of_module(size_t unit) const {
  const FlatUnit& flat = *units_[unit];
  return flat.kept_part().defined() ? flat.kept_part() : flat.own_part();
}

Tensor SteppedParts::own_elements(size_t unit, size_t index) const {
  return units_[unit]->own_elements_of_part(index, parts_[unit].values);
}

Tensor SteppedParts::take_gradients(size_t unit, const Tensor& averages) {
  copies_ = true;
  return parts_[unit].gradients.copy_(averages, /*non_blocking=*/true);
}

Tensor SteppedParts::gradient_place(size_t unit, size_t index) {
  copies_ = true;
  return units_[unit]->own_elements_of_part(index, parts_[unit].gradients);
}

void SteppedParts::wait() {
  if (!std::exchange(copies_, false) || device_.is_cpu()) return;
  const c10::impl::VirtualGuardImpl device(device_.type());
  device.synchronizeStream(device.getStream(device_));
}

void SteppedParts::write_back(size_t unit) {
  const at::NoGradGuard no_grad;
  Tensor values = parts_[unit].values;
  if (in_host_memory_) {
    copies_ = true;
    // Rounded there: a copy with a conversion would not be made from pinned memory.
    values = values.to(device_, /*non_blocking=*/true);
  }
  of_module(unit).copy_(values);
  if (is_checked(unit)) parts_[unit].written = checksum_.of(of_module(unit));
}

void SteppedParts::take_changed_values(const std::vector<size_t>& units) {
  const at::NoGradGuard no_grad;
  std::vector<size_t> checked;
  std::vector<Tensor> flags;
  for (const size_t unit : units)
    if (is_checked(unit)) {
      checked.push_back(unit);
      flags.push_back(checksum_.of(of_module(unit)).ne(parts_[unit].written));
    }
  if (checked.empty()) return;
  const Tensor is_changed = at::stack(flags).cpu();
  for (size_t i = 0; i < checked.size(); ++i)
    if (is_changed.const_data_ptr<bool>()[i]) parts_[checked[i]].values.copy_(of_module(checked[i]));
}

int64_t SteppedParts::master_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_)
    if (part.is_master) bytes += static_cast<int64_t>(part.values.nbytes());
  return bytes;
}

Tensor SteppedParts::gather(size_t unit, ShardGroups& groups) const {
  const at::NoGradGuard no_grad;
  const Tensor& part = parts_[unit].values;
  const Tensor buffer = at::zeros({units_[unit]->numel()}, part.options());
  run_exchange(groups.whole(), "fsdp", [&] { groups.parts().start_gather(buffer, part)->wait(); });
  return buffer;
}

}  // namespace fulgur::detail
