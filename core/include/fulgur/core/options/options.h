#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/options/config_node.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/options/interval.h"

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

class Fields;

/// The type of an option, as shown in help and JSON Schema.
struct TypeInfo {
  enum class Kind { boolean, integer, number, string, path, list, map, object, component, any_of };
  Kind kind = Kind::string;
  bool nullable = false;
  std::string name = {};                             ///< `int`, `float`, `list of int`, `callback`, …
  std::string pattern = {};                          ///< regular expression of a string, or empty
  std::vector<std::string> choices = {};             ///< allowed values, or empty
  std::optional<double> minimum = {}, maximum = {};  ///< inclusive
  std::optional<double> above = {}, below = {};      ///< exclusive
  std::optional<int64_t> min_items = {};
  std::vector<std::string> units = {};                   ///< of an interval: the allowed units
  std::string registry_kind = {};                        ///< of a component
  std::vector<TypeInfo> parts = {};                      ///< item of a list or map; alternatives of any_of
  std::function<std::unique_ptr<Fields>()> object = {};  ///< fields of an object, created on demand
};

/// The type and its conditions in words: `int, at least 1`, `one of norm, value`, `list of callback`.
FULGUR_API std::string type_text(const TypeInfo& type);

/// Reads and writes options of type T. Specialise `FieldTraits<T>` with `type()`, `read()` and `write()` to support a
/// custom type.
template <class T>
struct FieldTraits;

/// One option of a component.
struct Field {
  std::string name;
  std::string doc;
  TypeInfo type;
  bool required = false;
  bool is_learning_rate = false;  ///< `trainer.scale_lr` scales it
  /// Sets the member from the config; errors are added to the problems and leave the member unchanged.
  std::function<void(const ConfigNode&, Problems&, const std::string& path)> read;
  /// The member's value.
  std::function<ConfigNode()> write;
};

/// Adds conditions to the most recently declared field.
class FULGUR_API FieldRef {
 public:
  explicit FieldRef(Field& field) : field_(&field) {}
  FieldRef& required() {
    field_->required = true;
    return *this;
  }
  /// A learning rate, which `trainer.scale_lr` scales.
  FieldRef& learning_rate() {
    field_->is_learning_rate = true;
    return *this;
  }
  /// Allows `null` as well.
  FieldRef& nullable() {
    field_->type.nullable = true;
    return *this;
  }
  FieldRef& at_least(double minimum) {
    type().minimum = minimum;
    return *this;
  }
  FieldRef& at_most(double maximum) {
    type().maximum = maximum;
    return *this;
  }
  FieldRef& range(double minimum, double maximum) { return at_least(minimum).at_most(maximum); }
  FieldRef& greater_than(double bound) {
    type().above = bound;
    return *this;
  }
  FieldRef& less_than(double bound) {
    type().below = bound;
    return *this;
  }
  FieldRef& one_of(std::vector<std::string> choices) {
    type().choices = std::move(choices);
    return *this;
  }
  FieldRef& min_items(int64_t count) {
    field_->type.min_items = count;
    return *this;
  }
  /// Units allowed for an interval here (`{"s", "min", "h"}`); another one is a config error.
  FieldRef& units(const std::vector<std::string>& names);

 private:
  // Conditions on a list apply to its items.
  TypeInfo& type() {
    TypeInfo* t = &field_->type;
    while (t->kind == TypeInfo::Kind::list && !t->parts.empty()) t = &t->parts[0];
    return *t;
  }
  Field* field_;
};

/// The collector that `fields()` of an options struct fills.
class FULGUR_API Fields {
 public:
  Fields() = default;
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;
  virtual ~Fields();

  /// Declares an option. `member` must outlive this object: readers and writers refer to it.
  template <class T>
  FieldRef operator()(T& member, std::string_view name, std::string_view doc);

  const std::vector<Field>& all() const { return fields_; }

  /// Reads a map: unknown keys (with the nearest names), wrong types, values out of range and missing required options
  /// are added to `problems`.
  void read(const ConfigNode& node, Problems& problems, const std::string& path) const;
  /// All options with their values, in declaration order, with docs as comments.
  ConfigNode write() const;

  /// A hint for keys that are valid elsewhere (`gpus`), or nullopt. Used by TrainerOptions.
  std::function<std::optional<std::string>(std::string_view key)> hint_for_unknown;

 private:
  Field& append(std::string_view name, std::string_view doc, TypeInfo type);
  std::vector<Field> fields_;
};

/// Checks a value (of a list or map: each item) against the conditions of `type`: null, range, choices, length, and the
/// alternatives of an any_of. Adds errors to `problems`; other wrong types are left to the field's reader.
FULGUR_API bool check_conditions(const ConfigNode& written, const TypeInfo& type, Problems& problems,
                                 const std::string& path);

/// Type-erased options of any component.
class FULGUR_API AnyOptions {
 public:
  virtual ~AnyOptions();
  virtual void fields(Fields& fields) = 0;
  virtual std::unique_ptr<AnyOptions> clone() const = 0;
};

template <class T>
class OptionsOf final : public AnyOptions {
 public:
  OptionsOf() = default;
  explicit OptionsOf(T options) : value(std::move(options)) {}
  void fields(Fields& f) override { value.fields(f); }
  std::unique_ptr<AnyOptions> clone() const override { return std::make_unique<OptionsOf>(value); }
  T value{};
};

/// Options of a component without any.
struct NoOptions {
  void fields(Fields&) {}
};

/// `auto`, or a value.
template <class T>
struct Auto {
  std::optional<T> value;
  bool is_auto() const { return !value.has_value(); }
  Auto() = default;
  Auto(T v) : value(std::move(v)) {}
};

// ---- reading and writing of the basic types (options.cpp) ----
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
FULGUR_API void wrong_type(const ConfigNode&, const TypeInfo& expected, Problems&, const std::string& path);
FULGUR_API TypeInfo interval_type(std::vector<std::string> units);
}  // namespace detail

template <>
struct FieldTraits<bool> {
  static TypeInfo type() { return {.kind = TypeInfo::Kind::boolean, .name = "bool"}; }
  static bool read(const ConfigNode& n, bool& v, Problems& p, const std::string& path) {
    return detail::read_bool(n, v, p, path);
  }
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
  static bool read(const ConfigNode& n, double& v, Problems& p, const std::string& path) {
    return detail::read_double(n, v, p, path);
  }
  static ConfigNode write(double v) { return ConfigNode::number(v); }
};

template <>
struct FieldTraits<float> {
  static TypeInfo type() { return FieldTraits<double>::type(); }
  static bool read(const ConfigNode& n, float& v, Problems& p, const std::string& path) {
    return detail::read_float(n, v, p, path);
  }
  /// The shortest number that reads back as the same value.
  static ConfigNode write(float v) { return detail::write_float(v); }
};

template <>
struct FieldTraits<std::string> {
  static TypeInfo type() { return {.kind = TypeInfo::Kind::string, .name = "string"}; }
  static bool read(const ConfigNode& n, std::string& v, Problems& p, const std::string& path) {
    return detail::read_string(n, v, p, path);
  }
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
    if (value)
      v = *value;
    else
      detail::wrong_type(n, type(), p, path);
    return value.has_value();
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
  static bool read(const ConfigNode& n, BatchLimit& v, Problems& p, const std::string& path) {
    return detail::read_batch_limit(n, v, p, path);
  }
  static ConfigNode write(const BatchLimit& v) {
    return v.count ? ConfigNode::integer(*v.count) : ConfigNode::number(v.fraction);
  }
};

template <>
struct FieldTraits<Interval> {
  static TypeInfo type() { return detail::interval_type(Interval::all_units()); }
  static bool read(const ConfigNode& n, Interval& v, Problems& p, const std::string& path) {
    return detail::read_interval(n, v, p, path);
  }
  static ConfigNode write(const Interval& v) { return ConfigNode::scalar(v.text()); }
};

template <>
struct FieldTraits<Length> {
  static TypeInfo type() {
    return {.kind = TypeInfo::Kind::any_of,
            .name = "int or interval",
            .parts = {{.kind = TypeInfo::Kind::integer, .name = "int", .minimum = 0}, FieldTraits<Interval>::type()}};
  }
  static bool read(const ConfigNode& n, Length& v, Problems& p, const std::string& path) {
    return detail::read_length(n, v, p, path);
  }
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
    if (!n.is_list()) {
      detail::wrong_type(n, type(), p, path);
      return false;
    }
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
    if (!n.is_map()) {
      detail::wrong_type(n, type(), p, path);
      return false;
    }
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

/// A struct with `fields()` nested in another.
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
    if (!n.is_map()) {
      detail::wrong_type(n, type(), p, path);
      return false;
    }
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

template <class T>
FieldRef Fields::operator()(T& member, std::string_view name, std::string_view doc) {
  static_assert(
      requires { FieldTraits<T>::type(); },
      "fulgur::Fields: an option of this type cannot be read from a config; take bool, an integer, float, double, "
      "std::string, a "
      "std::vector, std::optional or map of them, or specialise fulgur::FieldTraits<T>");
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
