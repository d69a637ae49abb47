#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>

#include "fulgur/strategies/grad_scaler.h"

namespace fulgur::detail {

/// Throws a ConfigError where the device cannot compute in that half format; warns where it does so slowly.
void check_half_format(const std::string& precision, at::ScalarType dtype, at::Device device);

/// Warns once where the scale has fallen below 1: then something else than the range of float16 is wrong. Waits for the device.
void warn_of_small_scale(const GradScaler& scaler);

}  // namespace fulgur::detail
