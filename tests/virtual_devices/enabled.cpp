#include "fulgur/virtual_devices/virtual_devices.h"

// Before the first backward of the process, whichever test comes first.
[[maybe_unused]] static const bool enabled = (fulgur::enable_virtual_devices(8), true);
