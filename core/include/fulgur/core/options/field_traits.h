#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/options/config_node.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/options/fields.h"
#include "fulgur/core/options/interval.h"

/// How options of each type are read from a config and written to one.
namespace fulgur {

/// `auto`, or a value.
template <class T>
struct Auto {
  std::optional<T> value;
  bool is_auto() const { return !value.has_value(); }
  Auto() = default;
  Auto(T v) : value(std::move(v)) {}
};

// ---- reading and writing of the basic types ----
namespace detail {
FULGUR_API bool read_bool(const ConfigNode&, bool&, Problems&, const std::string& path);
FULGUR_API bool read_int(const ConfigNode&, int64_t&, Problems&, const std::string& path);
FULGUR_API bool read_double(const ConfigNode&, double&, Problems&, const std::string& path);
FULGUR_API bool read_float(const ConfigNode&, float&, Problems&, const std::string& path);
FULGUR_API ConfigNode write_float(float);
FULGUR_API bool read_string(const ConfigNode&, std::string&, Problems&, const std::string& path);
FULGUR_API bool read_batch_limit(const ConfigNode&, BatchLimit&, Problems&, const std::string& path);
FULGUR_API bool read_interval(const ConfigNode&, Interval&, Problems&, const std::string& path);
FULGUR_API bool read_length(const ConfigNode&, Length&, Problems&, const std::string& path);
/// Adds the problem; false, for a reader to return.
FULGUR_API bool wrong_type(const ConfigNode&, const TypeInfo& expected, Problems&, const std::string& path);
FULGUR_API TypeInfo interval_type(std::vector<std::string> units);
}  // namespace detail

template <>
struct FieldTraits<bool> {
  static TypeInfo type() { return {.kind = TypeInfo::Kind::boolean, .name = "bool"}; }
  static constexpr auto read = detail::read_bool;
  static ConfigNode write(bool v) { return ConfigNode::boolean(v); }
};

template <class I>
requires(std::integral<I> && !std::same_as<I, bool>) struct FieldTraits<I> {
  static TypeInfo type() { return {.kind = TypeInfo::Kind::integer, .name = "int"}; }
  static bool read(const ConfigNode& n, I& v, Problems& p, const std::string& path) {
    int64_t wide = 0;
    if (!detail::read_int(n, wide, p, path)) return false;
    if (!std::in_range<I>(wide)) {
      p.add(n.where, path, "does not fit its type; got " + n.text());
      return false;
    }
    v = static_cast<I>(wide);
    return true;
  }
  static ConfigNode write(I v) { return ConfigNode::integer(static_cast<int64_t>(v)); }
};

template <>
struct FieldTraits<double> {
  static TypeInfo type() { return {.kind = TypeInfo::Kind::number, .name = "float"}; }
  static constexpr auto read = detail::read_double;
  static ConfigNode write(double v) { return ConfigNode::number(v); }
};

template <>
struct FieldTraits<float> {
  static TypeInfo type() { return FieldTraits<double>::type(); }
  static constexpr auto read = detail::read_float;
  /// Writes the shortest number that reads back as the same value.
  static constexpr auto write = detail::write_float;
};

template <>
struct FieldTraits<std::string> {
  static TypeInfo type() { return {.kind = TypeInfo::Kind::string, .name = "string"}; }
  static constexpr auto read = detail::read_string;
  static ConfigNode write(const std::string& v) { return ConfigNode::string(v); }
};

/// Reads and writes an enum by name; the names are the choices of the option.
template <NamedEnum E>
struct FieldTraits<E> {
  static TypeInfo type() {
    TypeInfo type = FieldTraits<std::string>::type();
    for (const EnumName<E>& named : enum_names(E())) type.choices.emplace_back(named.name);
    return type;
  }
  static bool read(const ConfigNode& n, E& v, Problems& p, const std::string& path) {
    std::string text;
    if (!detail::read_string(n, text, p, path)) return false;
    const std::optional<E> value = enum_from<E>(text);
    if (!value) return detail::wrong_type(n, type(), p, path);
    v = *value;
    return true;
  }
  static ConfigNode write(E v) { return ConfigNode::string(std::string(enum_text(v))); }
};

template <>
struct FieldTraits<std::filesystem::path> {
  static TypeInfo type() { return {.kind = TypeInfo::Kind::path, .name = "path"}; }
  static bool read(const ConfigNode& n, std::filesystem::path& v, Problems& p, const std::string& path) {
    std::string text;
    if (!detail::read_string(n, text, p, path)) return false;
    v = text;
    return true;
  }
  static ConfigNode write(const std::filesystem::path& v) { return ConfigNode::string(v.string()); }
};

template <>
struct FieldTraits<BatchLimit> {
  static TypeInfo type() {
    return {.kind = TypeInfo::Kind::any_of,
            .name = "int or float",
            .parts = {{.kind = TypeInfo::Kind::integer, .name = "int", .minimum = 0},
                      {.kind = TypeInfo::Kind::number, .name = "float", .minimum = 0, .maximum = 1}}};
  }
  static constexpr auto read = detail::read_batch_limit;
  static ConfigNode write(const BatchLimit& v) {
    return v.count ? ConfigNode::integer(*v.count) : ConfigNode::number(v.fraction);
  }
};

template <>
struct FieldTraits<Interval> {
  static TypeInfo type() { return detail::interval_type(Interval::all_units()); }
  static constexpr auto read = detail::read_interval;
  static ConfigNode write(const Interval& v) { return ConfigNode::scalar(v.text()); }
};

template <>
struct FieldTraits<Length> {
  static TypeInfo type() {
    return {.kind = TypeInfo::Kind::any_of,
            .name = "int or interval",
            .parts = {{.kind = TypeInfo::Kind::integer, .name = "int", .minimum = 0}, FieldTraits<Interval>::type()}};
  }
  static constexpr auto read = detail::read_length;
  static ConfigNode write(const Length& v) {
    return v.interval ? ConfigNode::scalar(v.interval->text()) : ConfigNode::integer(v.count);
  }
};

template <class T>
struct FieldTraits<std::optional<T>> {
  static TypeInfo type() {
    TypeInfo t = FieldTraits<T>::type();
    t.nullable = true;
    return t;
  }
  static bool read(const ConfigNode& n, std::optional<T>& v, Problems& p, const std::string& path) {
    if (n.is_null()) {
      v.reset();
      return true;
    }
    T value = v.value_or(T{});
    if (!FieldTraits<T>::read(n, value, p, path)) return false;
    v = std::move(value);
    return true;
  }
  static ConfigNode write(const std::optional<T>& v) { return v ? FieldTraits<T>::write(*v) : ConfigNode::null(); }
};

template <class T>
struct FieldTraits<Auto<T>> {
  static TypeInfo type() {
    TypeInfo item = FieldTraits<T>::type();
    TypeInfo type{.kind = TypeInfo::Kind::any_of,
                  .name = "auto or " + item.name,
                  .parts = {{.kind = TypeInfo::Kind::string, .name = "auto", .choices = {"auto"}}}};
    if (item.kind == TypeInfo::Kind::any_of)
      type.parts.insert(type.parts.end(), item.parts.begin(), item.parts.end());
    else
      type.parts.push_back(std::move(item));
    return type;
  }
  static bool read(const ConfigNode& n, Auto<T>& v, Problems& p, const std::string& path) {
    if (n.is_scalar() && n.text() == "auto") {
      v.value.reset();
      return true;
    }
    T value{};
    if (!FieldTraits<T>::read(n, value, p, path)) return false;
    v.value = std::move(value);
    return true;
  }
  static ConfigNode write(const Auto<T>& v) {
    return v.value ? FieldTraits<T>::write(*v.value) : ConfigNode::scalar("auto");
  }
};

template <class T>
struct FieldTraits<std::vector<T>> {
  static TypeInfo type() {
    TypeInfo item = FieldTraits<T>::type();
    return {.kind = TypeInfo::Kind::list, .name = "list of " + item.name, .parts = {item}};
  }
  static bool read(const ConfigNode& n, std::vector<T>& v, Problems& p, const std::string& path) {
    if (!n.is_list()) return detail::wrong_type(n, type(), p, path);
    std::vector<T> values;
    bool good = true;
    for (size_t i = 0; i < n.items().size(); ++i) {
      T value{};
      good &= FieldTraits<T>::read(n.items()[i], value, p, path + "." + std::to_string(i));
      values.push_back(std::move(value));
    }
    if (good) v = std::move(values);
    return good;
  }
  static ConfigNode write(const std::vector<T>& v) {
    std::vector<ConfigNode> items;
    for (const T& item : v) items.push_back(FieldTraits<T>::write(item));
    return ConfigNode::list(std::move(items));
  }
};

template <class T>
struct FieldTraits<std::map<std::string, T>> {
  static TypeInfo type() {
    TypeInfo item = FieldTraits<T>::type();
    return {.kind = TypeInfo::Kind::map, .name = "map of " + item.name, .parts = {item}};
  }
  static bool read(const ConfigNode& n, std::map<std::string, T>& v, Problems& p, const std::string& path) {
    if (!n.is_map()) return detail::wrong_type(n, type(), p, path);
    std::map<std::string, T> values;
    bool good = true;
    for (const auto& [key, node] : n.entries()) {
      T value{};
      good &= FieldTraits<T>::read(node, value, p, join_path(path, key));
      values.emplace(key, std::move(value));
    }
    if (good) v = std::move(values);
    return good;
  }
  static ConfigNode write(const std::map<std::string, T>& v) {
    std::vector<ConfigNode::Entry> entries;
    for (const auto& [key, item] : v) entries.emplace_back(key, FieldTraits<T>::write(item));
    return ConfigNode::map(std::move(entries));
  }
};

/// Reads and writes a struct with `fields()` that is nested in another.
template <class T>
requires requires(T t, Fields& f) { t.fields(f); }
struct FieldTraits<T> {
  static TypeInfo type() {
    return {.kind = TypeInfo::Kind::object, .name = "map", .object = [] {
              // The fields refer to members of an object, which must live as long as they do.
              struct Holder : Fields {
                T value{};
              };
              auto holder = std::make_unique<Holder>();
              holder->value.fields(*holder);
              return std::unique_ptr<Fields>(std::move(holder));
            }};
  }
  static bool read(const ConfigNode& n, T& v, Problems& p, const std::string& path) {
    if (n.is_null()) return true;  // `data:` with nothing below it: all defaults
    if (!n.is_map()) return detail::wrong_type(n, type(), p, path);
    const size_t before = p.items().size();
    Fields f;
    v.fields(f);
    f.read(n, p, path);
    return p.items().size() == before;
  }
  static ConfigNode write(const T& v) {
    T copy = v;
    Fields f;
    copy.fields(f);
    return f.write();
  }
};

}  // namespace fulgur
