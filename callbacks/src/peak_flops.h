#pragma once

#include <optional>
#include <string_view>

namespace fulgur::detail {

/// The number format of matrix products.
enum class MatmulKind { float32, tf32, half };

/// For a precision's name (`32-true`, `bf16-mixed`); `tf32`: whether CUDA computes float32 products in TF32. Nullopt
/// for precisions that are not in the table.
std::optional<MatmulKind> matmul_kind(std::string_view precision, bool tf32);

/// Dense peak FLOP/s of the device with that name, or nullopt if unknown. Figures are from NVIDIA's data sheets.
std::optional<double> peak_flops(std::string_view device_name, MatmulKind kind);

}  // namespace fulgur::detail
