#pragma once

#include <string>
#include <typeinfo>

namespace fulgur::detail {

/// Name of a class without its namespace.
std::string class_name(const std::type_info& type);

}  // namespace fulgur::detail
