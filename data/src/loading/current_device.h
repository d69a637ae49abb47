#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace fulgur {

/// The device that `at::kCUDA` without an index means on this thread, for threads that work for it. Empty where that is
/// the first, as on every new thread, or where LibTorch has no accelerator.
std::optional<at::Device> current_device();

}  // namespace fulgur
