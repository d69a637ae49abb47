#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "fulgur/core/options/field_traits.h"
#include "fulgur/core/options/fields.h"

/// One description per option. A component's options are a plain struct with one visitor:
///
///     struct Options {
///       int64_t hidden = 128;
///       double lr = 1e-3;
///       void fields(fulgur::Fields& f) {
///         f(hidden, "hidden", "Width of the hidden layer.").at_least(1);
///         f(lr, "lr", "Learning rate.").greater_than(0);
///       }
///     };
///
/// It gives parsing, ranges, defaults, `--help`, `--print_config`, the JSON Schema and the docs page.
namespace fulgur {

template <class T>
FieldRef Fields::operator()(T& member, std::string_view name, std::string_view doc) {
  static_assert(
      requires { FieldTraits<T>::type(); },
      "fulgur::Fields: an option of this type cannot be read from a config; take bool, an integer, float, double, "
      "std::string, a std::vector, std::optional or map of them, or specialise fulgur::FieldTraits<T>");
  Field& field = append(name, doc, FieldTraits<T>::type());
  T* target = &member;
  field.read = [target](const ConfigNode& node, Problems& problems, const std::string& path) {
    T value = *target;
    if (FieldTraits<T>::read(node, value, problems, path)) *target = std::move(value);
  };
  field.write = [target] { return FieldTraits<T>::write(*target); };
  return FieldRef(field);
}

}  // namespace fulgur
