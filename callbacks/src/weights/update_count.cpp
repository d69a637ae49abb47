#include "weights/update_count.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "fulgur/core/state/cpu_scalar.h"
#include "fulgur/core/state/late_number.h"

namespace fulgur::detail {

void UpdateCount::set(int64_t count) {
  known_ = count;
  on_device_.reset();
  late_.clear();
}

void UpdateCount::add() {
  const at::NoGradGuard no_grad;
  if (on_device_.defined()) on_device_.add_(1);
  ++known_;
}

void UpdateCount::add_if(const Tensor& counts) {
  const at::NoGradGuard no_grad;
  if (!on_device_.defined()) on_device_ = on(counts);
  on_device_.add_(counts.ne(0));
  // Only whether there was an update at all is of interest to the host.
  if (!is_known() && late_.pending().empty()) late_.add(on_device_, /*step=*/0);
}

void UpdateCount::end_batch() {
  late_.end_batch();
  while (const auto number = late_.take()) known_ = std::max(known_, static_cast<int64_t>(cpu_scalar(number->value)));
}

Tensor UpdateCount::on(const Tensor& like) const {
  return on_device_.defined() ? on_device_
                              : at::full({}, static_cast<double>(known_), like.options().dtype(at::kDouble));
}

Tensor UpdateCount::is_zero(const Tensor& like) const { return on(like).eq(0); }

Tensor UpdateCount::equal_weight(const Tensor& like) const { return on(like).add(1).reciprocal(); }

int64_t UpdateCount::value() const { return on_device_.defined() ? on_device_.item<int64_t>() : known_; }

StateTree UpdateCount::state() const {
  return on_device_.defined() ? late_number(on_device_.to(at::kLong)) : StateTree(known_);
}

}  // namespace fulgur::detail
