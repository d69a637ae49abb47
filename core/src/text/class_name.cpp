#include "text/class_name.h"

#include <c10/util/Type.h>

namespace fulgur::detail {

std::string class_name(const std::type_info& type) {
  std::string name = c10::demangle(type.name());
  const size_t colons = name.rfind("::");
  return colons == std::string::npos ? name : name.substr(colons + 2);
}

}  // namespace fulgur::detail
