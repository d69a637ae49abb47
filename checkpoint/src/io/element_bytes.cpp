#include "io/element_bytes.h"

#include <map>

namespace fulgur::detail {

uint64_t element_bytes(std::string_view dtype) {
  static const std::map<std::string_view, uint64_t> kSizes{
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  const auto found = kSizes.find(dtype);
  return found == kSizes.end() ? 0 : found->second;
}

}  // namespace fulgur::detail
