#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fulgur::detail {

/// What the products of matrices are made with.
enum class MatmulKind { float32, tf32, half };

/// Of a precision's name (`32-true`, `bf16-mixed`); with `tf32` where CUDA's products of float32 are made so. Nothing
/// for precisions that no table has.
std::optional<MatmulKind> matmul_kind(std::string_view precision, bool tf32);

/// Peak FLOP/s of the device of that name, dense, or nothing where it is not known. Figures are those of NVIDIA's data
/// sheets.
std::optional<double> peak_flops(std::string_view device_name, MatmulKind kind);

}  // namespace fulgur::detail
