#pragma once

#include <filesystem>
#include <string>

#include "fulgur/core/state/tensor.h"

namespace fulgur::tables {

/// Where an array is: `x.npy`, `data.npz:name` or `data.safetensors:name`.
struct ArraySource {
  std::filesystem::path path;
  std::string name;  ///< in the file; empty for .npy
  /// Throws a ConfigError for a text that is no source.
  static ArraySource from(const std::string& text);
};

/// The array as a contiguous tensor on the CPU. Integers without a sign become wider ones with a sign: uint16 int32,
/// uint32 int64, uint64 int64. With `memory_map`, a .npy file in C order is not read but mapped: pages are read when
/// they are used, and writes do not reach the file. Throws a DataError that names the file for a file that is damaged,
/// lacks the array, or has another dtype.
Tensor read_array(const ArraySource& source, bool memory_map);

}  // namespace fulgur::tables
