#include "arrays/npy_header.h"

#include "fulgur/core/text/errors.h"
#include "targets.h"

namespace fulgur::fuzz {

void npy_header(std::string_view input) {
  try {
    const tables::NpyHeader header = tables::read_npy_header(input, "the array");
    expect(header.data_begin <= input.size() &&
               static_cast<uint64_t>(header.count() * header.item_bytes) == input.size() - header.data_begin,
           "an array is as large as its shape says");
    for (const int64_t size : header.shape) expect(size >= 0, "no size is negative");
  } catch (const DataError&) {
  }
}

}  // namespace fulgur::fuzz
