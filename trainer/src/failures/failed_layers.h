#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <string_view>

#include "fulgur/core/contracts/module.h"

namespace fulgur::detail {

/// The layers that a LibTorch error is about, for display; nullopt if its text does not tell. LibTorch's layers have no
/// hooks, so they are identified from the text: the shape of a weight, or a device mismatch.
std::optional<std::string> failed_layers(std::string_view error, const LightningModule& module, at::Device device);

}  // namespace fulgur::detail
