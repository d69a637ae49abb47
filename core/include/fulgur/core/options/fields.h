#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/options/config_node.h"
#include "fulgur/core/options/type_info.h"

namespace fulgur {

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
  /// Sets the member from the config. Errors are added to the problems and leave the member unchanged.
  std::function<void(const ConfigNode&, Problems&, const std::string& path)> read;
  /// Returns the member's value.
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
  /// Marks a learning rate, which `trainer.scale_lr` scales.
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
  /// Requires a list of `count` items.
  FieldRef& items(int64_t count) {
    field_->type.min_items = field_->type.max_items = count;
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
  /// The option with this name, or nullptr.
  const Field* find(std::string_view name) const;

  /// Reads a map: unknown keys (with the nearest names), wrong types, values out of range and missing required options
  /// are added to `problems`.
  void read(const ConfigNode& node, Problems& problems, const std::string& path) const;
  /// All options with their values, in declaration order, with docs as comments.
  ConfigNode write() const;

  /// A hint for keys that are valid elsewhere (`gpus`), or nullopt. Used by TrainerOptions.
  std::function<std::optional<std::string>(std::string_view key)> hint_for_unknown;
  /// The class whose options these are, which messages about unknown keys name; empty if they belong to none.
  std::string class_name;

 private:
  Field& append(std::string_view name, std::string_view doc, TypeInfo type);
  std::vector<Field> fields_;
};

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

}  // namespace fulgur
