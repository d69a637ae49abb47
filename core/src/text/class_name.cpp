#include "fulgur/core/text/class_name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace fulgur::detail {

std::string class_name(const std::type_info& type) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                   &std::free);
  std::string name = status == 0 && text ? text.get() : type.name();
  const size_t colons = name.rfind("::");
  return colons == std::string::npos ? name : name.substr(colons + 2);
}

}  // namespace fulgur::detail
