#pragma once

// Independent of LibTorch, so that it can be fuzzed on its own.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fulgur::tables {

/// The header of an array in NumPy's format (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
struct NpyHeader {
  char kind = 'f';  ///< b: bool, i: integer, u: integer without sign, f: floating
  int64_t item_bytes = 4;
  bool fortran_order = false;
  std::vector<int64_t> shape;
  size_t data_begin = 0;  ///< the byte at which the values begin

  int64_t count() const;
};

/// Reads the header at the beginning of `bytes`, which is the whole array. Throws a DataError that begins with `name`
/// for what is no array, for dtypes other than little-endian bools, integers and floats, and unless there are exactly
/// as many bytes as the shape says.
NpyHeader read_npy_header(std::string_view bytes, const std::string& name);

}  // namespace fulgur::tables
