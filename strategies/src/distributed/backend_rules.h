#pragma once

#include <string>

namespace fulgur::detail {

/// The backend for gradients on `device_type` (`cpu`, `cuda`): cpu → gloo, cuda → nccl, gloo on cuda too. Throws a
/// ConfigError with the reason for an invalid combination.
std::string choose_backend(const std::string& wanted, const std::string& device_type);

}  // namespace fulgur::detail
