#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <string_view>

#include "fulgur/core/module.h"

namespace fulgur::detail {

/// Which layers an error of LibTorch's is about, for people; nothing where its text does not say. LibTorch's layers
/// have no hooks, so they are found by what the text has of them: the shape of a weight, or that a device is another
/// one.
std::optional<std::string> failed_layers(std::string_view error, const LightningModule& module, at::Device device);

}  // namespace fulgur::detail
