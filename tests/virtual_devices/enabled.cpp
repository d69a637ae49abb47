#include "fulgur/virtual_devices/virtual_devices.h"

// For all tests of this program, whichever comes first.
[[maybe_unused]] static const bool enabled = (fulgur::enable_virtual_devices(8), true);
