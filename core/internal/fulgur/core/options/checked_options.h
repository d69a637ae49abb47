#pragma once

#include <string>
#include <string_view>

#include "fulgur/core/options/options.h"

namespace fulgur::detail {

/// Returns the options if they satisfy the conditions that they declare: options from a config are checked when it is
/// read, options from C++ here. Throws a ConfigError that names each option that does not, as `component.option`.
template <class Options>
Options checked_options(Options options, std::string_view component) {
  Fields fields;
  options.fields(fields);
  Problems problems;
  fields.read(fields.write(), problems, std::string(component));
  problems.throw_if_any();
  return options;
}

}  // namespace fulgur::detail
