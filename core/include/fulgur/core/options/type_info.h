#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/options/config_node.h"

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
  std::optional<int64_t> min_items = {}, max_items = {};
  std::vector<std::string> units = {};  ///< units allowed for an interval
  std::string registry_kind = {};       ///< registry of a component
  std::vector<TypeInfo> parts = {};     ///< type of the items of a list or map, or the alternatives of any_of
  std::function<std::unique_ptr<Fields>()> object = {};  ///< fields of an object, created on demand
};

/// The type and its conditions in words, such as `int, at least 1`, `one of norm, value` or `list of callback`.
FULGUR_API std::string type_text(const TypeInfo& type);

/// Checks a value, or each item of a list or map, against the conditions of `type`: null, range, choices, length, and
/// the alternatives of an any_of. Adds errors to `problems`; other wrong types are left to the field's reader.
FULGUR_API bool check_conditions(const ConfigNode& written, const TypeInfo& type, Problems& problems,
                                 const std::string& path);

}  // namespace fulgur
