#pragma once

#include <string>
#include <string_view>

#include "fulgur/core/options/options.h"

namespace fulgur::detail {

/// Throws a ConfigError that names each option that does not satisfy the conditions that it declares, as
/// `component.option`: options from a config are checked when it is read, options from C++ here.
template <class Options>
void check_options(Options options, std::string_view component) {
  Fields fields;
  options.fields(fields);
  Problems problems;
  fields.read(fields.write(), problems, std::string(component));
  problems.throw_if_any();
}

/// Returns the options if check_options accepts them.
template <class Options>
Options checked_options(Options options, std::string_view component) {
  check_options(options, component);
  return options;
}

}  // namespace fulgur::detail
