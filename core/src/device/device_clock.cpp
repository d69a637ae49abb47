#include "fulgur/core/device/device_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace fulgur::detail {

DeviceClock::Moment DeviceClock::now() const {
  Moment moment{.host = std::chrono::steady_clock::now(), .event = nullptr};
  if (device_.is_cpu()) return moment;
  // The default flag creates events without timing.
  moment.event = std::make_shared<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  moment.event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return moment;
}

double DeviceClock::seconds(const Moment& from, const Moment& to) const {
  if (!to.event) return host_seconds(from, to);
  if (!to.event->query()) to.event->synchronize();
  return 1e-3 * from.event->elapsedTime(*to.event);
}

}  // namespace fulgur::detail
