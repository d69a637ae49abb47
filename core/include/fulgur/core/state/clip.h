#pragma once

#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

enum class ClipAlgorithm { norm, value };
constexpr auto enum_names(ClipAlgorithm) {
  return std::to_array<EnumName<ClipAlgorithm>>({{ClipAlgorithm::norm, "norm"}, {ClipAlgorithm::value, "value"}});
}

/// The tensors grouped by device and dtype, as the multi-tensor kernels require.
FULGUR_API std::vector<std::vector<Tensor>> by_device_and_dtype(const std::vector<Tensor>& tensors);

/// The norm of each tensor (`norm_type` is its order, which may be infinite), as scalars of one dtype on the device of
/// the first; does not synchronize. Norms of half-precision tensors are float32.
FULGUR_API std::vector<Tensor> norms_of(const std::vector<Tensor>& tensors, double norm_type);

/// Joint 2-norm of the gradients, on the device of the first; does not synchronize. Half-precision gradients are summed
/// in float32. It is 0 if there are no gradients.
FULGUR_API Tensor grad_norm(const std::vector<Tensor>& gradients);

/// Scales the gradients so that their joint 2-norm is at most `max_norm`; the coefficient stays on the device, without
/// synchronization. Returns the norm before clipping, like `grad_norm`. g ← g · min(1, max_norm / (‖g‖₂ + 1e-6)), like
/// torch.nn.utils.clip_grad_norm_.
FULGUR_API Tensor clip_grad_norm(const std::vector<Tensor>& gradients, double max_norm);
/// The same with a norm that is known, of these and other gradients.
FULGUR_API void clip_grad_norm(const std::vector<Tensor>& gradients, double max_norm, const Tensor& norm);

/// Clamps each gradient to [-clip_value, clip_value].
FULGUR_API void clip_grad_value(const std::vector<Tensor>& gradients, double clip_value);

}  // namespace fulgur
