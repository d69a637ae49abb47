#include "steps/late_numbers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace fulgur::detail {

void LateNumbers::add(const Tensor& value, int64_t step, int64_t age) {
  const at::NoGradGuard no_grad;
  Copy copy{.number = {.value = value.detach().clone(), .step = step, .age = age}, .on_host = {}, .copied = {}};
  const Tensor& kept = copy.number.value;
  if (!kept.is_cuda()) {
    copy.on_host = kept.is_cpu() ? kept : kept.cpu();
  } else {
    copy.on_host =
        at::empty(kept.sizes(), at::TensorOptions().dtype(kept.scalar_type()).device(at::kCPU).pinned_memory(true));
    copy.on_host.copy_(kept, /*non_blocking=*/true);
    copy.copied = std::make_shared<c10::Event>(kept.device().type());
    copy.copied->record(c10::impl::VirtualGuardImpl(kept.device().type()).getStream(kept.device()));
  }
  pending_.push_back(std::move(copy));
}

void LateNumbers::end_batch() {
  for (Copy& copy : pending_) ++copy.number.age;
}

std::optional<LateNumbers::Number> LateNumbers::take(bool waits) {
  if (pending_.empty()) return std::nullopt;
  const Copy& oldest = pending_.front();
  if (late_ && !waits && oldest.number.age < kLater) return std::nullopt;
  if (oldest.copied && !oldest.copied->query()) oldest.copied->synchronize();
  Number number{.value = oldest.on_host, .step = oldest.number.step, .age = oldest.number.age};
  pending_.pop_front();
  return number;
}

std::deque<LateNumbers::Number> LateNumbers::pending() const {
  std::deque<Number> numbers;
  for (const Copy& copy : pending_) numbers.push_back(copy.number);
  return numbers;
}

}  // namespace fulgur::detail
