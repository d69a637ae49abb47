#include "fulgur/core/device/autocast.h"

#include <ATen/autocast_mode.h>

namespace fulgur {

namespace autocast = at::autocast;

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled)
    : device_(device),
      dtype_before_(autocast::get_autocast_dtype(device)),
      enabled_before_(autocast::is_autocast_enabled(device)),
      cache_before_(autocast::is_autocast_cache_enabled()) {
  autocast::set_autocast_enabled(device, enabled);
  autocast::set_autocast_dtype(device, dtype);
  autocast::set_autocast_cache_enabled(true);
  autocast::increment_nesting();
  // The cache ignores the dtype: a weight cast in the outer region would be reused in this one.
  if (dtype != dtype_before_) autocast::clear_cache();
}

Autocast::~Autocast() {
  if (autocast::decrement_nesting() == 0 || autocast::get_autocast_dtype(device_) != dtype_before_)
    autocast::clear_cache();
  autocast::set_autocast_enabled(device_, enabled_before_);
  autocast::set_autocast_dtype(device_, dtype_before_);
  autocast::set_autocast_cache_enabled(cache_before_);
}

}  // namespace fulgur
