#pragma once

#include <string>
#include <string_view>

#include "fulgur/core/options.h"

namespace fulgur::detail {

/// The options, if they keep the conditions that they declare: those of a config are checked when it is read, those
/// from C++ here. Throws a ConfigError that names each option that does not, as `component.option`.
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
