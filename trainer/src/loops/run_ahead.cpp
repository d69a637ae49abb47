#include "loops/run_ahead.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace fulgur::detail {

void RunAhead::begin_step() {
  if (!device_.is_cuda() || steps_ < kSteps) return;
  const c10::Event& done = *done_[static_cast<size_t>(steps_ % kSteps)];
  // A device that keeps up causes no wait.
  if (!done.query()) done.synchronize();
}

void RunAhead::end_step() {
  if (!device_.is_cuda()) return;
  std::optional<c10::Event>& done = done_[static_cast<size_t>(steps_++ % kSteps)];
  if (!done) done.emplace(device_.type());
  done->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

}  // namespace fulgur::detail
