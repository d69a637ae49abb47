#pragma once

// Independent of LibTorch, so that it can be fuzzed on its own.
#include <array>
#include <cstdint>
#include <string_view>

namespace fulgur::detail {

/// A dtype as Python's torch names it: `torch.float32`, `torch.FloatStorage`.
struct TorchDtype {
  std::string_view name;
  std::string_view storage;  ///< empty if torch.save writes an UntypedStorage and names the dtype instead
  uint64_t bytes = 0;        ///< of one element
};

inline constexpr std::array<TorchDtype, 17> kTorchDtypes{{{"bool", "BoolStorage", 1},
                                                          {"uint8", "ByteStorage", 1},
                                                          {"int8", "CharStorage", 1},
                                                          {"int16", "ShortStorage", 2},
                                                          {"int32", "IntStorage", 4},
                                                          {"int64", "LongStorage", 8},
                                                          {"float16", "HalfStorage", 2},
                                                          {"bfloat16", "BFloat16Storage", 2},
                                                          {"float32", "FloatStorage", 4},
                                                          {"float64", "DoubleStorage", 8},
                                                          {"complex64", "ComplexFloatStorage", 8},
                                                          {"complex128", "ComplexDoubleStorage", 16},
                                                          {"uint16", "", 2},
                                                          {"uint32", "", 4},
                                                          {"uint64", "", 8},
                                                          {"float8_e4m3fn", "", 1},
                                                          {"float8_e5m2", "", 1}}};

}  // namespace fulgur::detail
