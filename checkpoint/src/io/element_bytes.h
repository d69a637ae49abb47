#pragma once

// Independent of LibTorch.
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fulgur::detail {

inline constexpr size_t kMaxDimensions = 64;  ///< of a tensor in a file

/// Bytes of one element of a dtype of safetensors files (`F32`), or 0 for an unknown dtype.
uint64_t element_bytes(std::string_view dtype);

}  // namespace fulgur::detail
