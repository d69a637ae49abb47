#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/options/options.h"

namespace fulgur::images {

/// An option that is written as one value or as a list of them: `padding: 4` or `padding: [4, 8]`.
template <class T>
struct OneOrMore {
  std::vector<T> values;
  OneOrMore() = default;
  OneOrMore(T value) : values{std::move(value)} {}
  OneOrMore(std::initializer_list<T> list) : values(list) {}
};

}  // namespace fulgur::images

namespace fulgur {

template <class T>
struct FieldTraits<images::OneOrMore<T>> {
  static TypeInfo type() {
    const TypeInfo item = FieldTraits<T>::type();
    TypeInfo list = FieldTraits<std::vector<T>>::type();
    const std::string name = item.name + " or " + list.name;
    return {.kind = TypeInfo::Kind::any_of, .name = name, .parts = {item, std::move(list)}};
  }
  static bool read(const ConfigNode& n, images::OneOrMore<T>& v, Problems& p, const std::string& path) {
    if (n.is_list()) return FieldTraits<std::vector<T>>::read(n, v.values, p, path);
    if (!n.is_scalar()) return detail::wrong_type(n, type(), p, path);
    T value{};
    if (!FieldTraits<T>::read(n, value, p, path)) return false;
    v.values = {std::move(value)};
    return true;
  }
  static ConfigNode write(const images::OneOrMore<T>& v) {
    return v.values.size() == 1 ? FieldTraits<T>::write(v.values[0]) : FieldTraits<std::vector<T>>::write(v.values);
  }
};

}  // namespace fulgur
