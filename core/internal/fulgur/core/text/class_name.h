#pragma once

#include <c10/util/Type.h>

#include <string>
#include <typeinfo>

namespace fulgur::detail {

/// Name of a class without its namespace.
inline std::string class_name(const std::type_info& type) {
  const std::string name = c10::demangle(type.name());
  const size_t colons = name.rfind("::");
  return colons == std::string::npos ? name : name.substr(colons + 2);
}

}  // namespace fulgur::detail
