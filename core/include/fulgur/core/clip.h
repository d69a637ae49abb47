#pragma once

#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/tensor.h"

namespace fulgur {

/// Scales the gradients so that their joint 2-norm is at most `max_norm`; the coefficient stays on the device, nothing
/// waits for it. Returns the norm before (float scalar on the device of the first gradient; 0 for no gradient).
/// g ← g · min(1, max_norm / (‖g‖₂ + 1e-6)), as torch.nn.utils.clip_grad_norm_.
FULGUR_API Tensor clip_grad_norm(const std::vector<Tensor>& gradients, double max_norm);

/// Clamps each gradient to [-clip_value, clip_value].
FULGUR_API void clip_grad_value(const std::vector<Tensor>& gradients, double clip_value);

}  // namespace fulgur
