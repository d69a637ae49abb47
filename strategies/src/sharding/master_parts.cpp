#include "sharding/master_parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include "distributed/process_group_impl.h"

namespace fulgur::detail {

MasterParts::MasterParts(const std::vector<std::unique_ptr<FlatUnit>>& units, const Copies& copies, at::Device device)
    : units_(units), parts_(units.size()) {
  const at::NoGradGuard no_grad;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const auto& parameters = units[unit]->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto found = copies.find(parameters[i].value.unsafeGetTensorImpl());
      if (found == copies.end()) continue;
      if (!has(unit))
        parts_[unit] =
            at::zeros({units[unit]->numel_of_part()}, found->second.options().device(device).requires_grad(false));
      Tensor whole = found->second.detach();
      if (const auto strides = units[unit]->strides(i); whole.strides() != strides)
        whole = at::empty_strided(whole.sizes(), strides, whole.options()).copy_(whole);
      const auto [begin, count] = units[unit]->own_range(i);
      own_elements(unit, i).copy_(in_memory_order(whole).narrow(0, begin, count));
    }
  }
}

Tensor MasterParts::own_elements(size_t unit, size_t index) const {
  return units_[unit]->own_elements_of_part(index, parts_[unit]);
}

void MasterParts::write_back(size_t unit) const {
  const at::NoGradGuard no_grad;
  const FlatUnit& flat = *units_[unit];
  (flat.kept_part().defined() ? flat.kept_part() : flat.own_part()).copy_(parts_[unit]);
}

int64_t MasterParts::bytes() const {
  int64_t bytes = 0;
  for (const Tensor& part : parts_)
    if (part.defined()) bytes += static_cast<int64_t>(part.nbytes());
  return bytes;
}

Tensor MasterParts::gather(size_t unit, ShardGroups& groups) const {
  const at::NoGradGuard no_grad;
  const Tensor buffer = at::zeros({units_[unit]->numel()}, parts_[unit].options());
  run_exchange(groups.whole(), "fsdp", [&] { groups.parts().start_gather(buffer, parts_[unit])->wait(); });
  return buffer;
}

}  // namespace fulgur::detail
