#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace fulgur {

/// The device that `at::kCUDA` without an index means on this thread, to be set on its worker threads. Nullopt if it is
/// the first one, as on every new thread, or if LibTorch has no accelerator.
std::optional<at::Device> current_device();

}  // namespace fulgur
