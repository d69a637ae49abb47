#include "fulgur/core/options/field_traits.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "fulgur/core/options/form_hints.h"
#include "fulgur/core/options/options.h"
#include "fulgur/core/text/text.h"
#include "options/scalar_text.h"

namespace fulgur::detail {
namespace {

/// The units that may follow a number without one: a part of the run for a fraction, only those that count wholes if
/// it is none.
std::string unit_hint(const std::string& text, double number, const std::vector<std::string>& units) {
  const bool is_fraction = number > 0 && number < 1;
  if (is_fraction && std::ranges::find(units, "dur") != units.end())
    return cat("write the unit too: ", text, "dur is this part of the run");
  std::vector<std::string> with_unit;
  for (const std::string& unit : units)
    if (Interval::parse(text + unit)) with_unit.push_back(text + unit);
  if (with_unit.empty()) return cat("write a number and a unit, such as 10", units.front());
  const std::string last = with_unit.back();
  with_unit.pop_back();
  return cat("write the unit too: ", join(with_unit), with_unit.empty() ? "" : " or ", last);
}

/// A hint for a value whose form is that of another kind: a map for a list, `key:value` for a map.
std::string form_hint(const ConfigNode& node, const TypeInfo& expected) {
  using Kind = TypeInfo::Kind;
  const bool is_list = expected.kind == Kind::list;
  const bool lists_components = is_list && !expected.parts.empty() && expected.parts[0].kind == Kind::component;
  if (is_plain_scalar(node) && (lists_components || expected.kind == Kind::object || expected.kind == Kind::map))
    if (std::string hint = missing_space_hint(node.text()); !hint.empty()) return hint;
  if (is_list && node.is_scalar()) return cat("write a list: [", node.text(), "]");
  if (lists_components && node.is_map())
    if (const std::string form = component_list_form(node); !form.empty()) return cat("write a list: ", form);
  if ((expected.kind == Kind::object || expected.kind == Kind::map) && node.is_list() && !node.items().empty() &&
      node.items().front().is_map())
    return "write its keys without '- '";
  return {};
}

/// A hint for someone who wrote `text` where a number or boolean is expected.
std::string hint_for(const ConfigNode& node, const TypeInfo& expected) {
  if (node.is_null()) return "leave the key out for its default";
  if (std::string hint = form_hint(node, expected); !hint.empty()) return hint;
  if (!node.is_scalar()) return {};
  const std::string& text = node.text();
  int64_t whole = 0;
  double number = 0;
  const bool is_number = parse_number(text, number) == Parsed::ok;
  if (expected.kind == TypeInfo::Kind::boolean) {
    if (node.quoted() && parse_bool(text)) return "remove the quotes";
    return "write true or false";
  }
  if (!expected.units.empty()) {
    if (is_number) return unit_hint(text, number, expected.units);
    if (std::ranges::count(text, ':') > 0) return "write a duration with its unit, such as 90min";
    return cat("write a number and a unit, such as 10", expected.units.front());
  }
  if (!is_number_kind(expected.kind)) return {};
  if (node.quoted() && is_number) return "remove the quotes";
  const std::string_view digits = without_sign(text);
  if (expected.kind == TypeInfo::Kind::integer && is_number && std::isfinite(number)) {
    if (number == std::floor(number) && std::abs(number) < 9e15) {
      return cat("write ", static_cast<int64_t>(number), ", without point or exponent");
    }
    return "write a whole number";
  }
  if (has_leading_zero(digits)) return "a leading zero means octal to some readers; write the number without it";
  if (digits.size() > 2 && digits[0] == '0' && std::string_view("xXoObB").find(digits[1]) != std::string_view::npos) {
    return "write the number in decimal";
  }
  if (text.find('_') != std::string::npos) {
    std::string plain = text;
    std::erase(plain, '_');
    if (looks_number(plain) || parse_integer(plain, whole) == Parsed::ok)
      return "write " + plain + ", without underscores";
  }
  if (text == "nan" || text == ".nan" || text == ".NaN" || text == ".NAN") return "an option cannot be NaN";
  if (text == "inf" || text == "-inf") return "YAML writes infinity as .inf";
  return {};
}

}  // namespace

bool wrong_type(const ConfigNode& node, const TypeInfo& expected, Problems& problems, const std::string& path) {
  std::string message = cat("expected ", type_text(expected), "; got ", node.describe());
  std::string hint = hint_for(node, expected);
  for (size_t i = 0; hint.empty() && i < expected.parts.size() && expected.kind == TypeInfo::Kind::any_of; ++i) {
    hint = hint_for(node, expected.parts[i]);
  }
  // `pretrained: weights.safetensors`
  if (hint.empty() && node.is_scalar() && expected.object && expected.object()->find("path") != nullptr)
    hint = cat("write {path: ", node.text(), "}");
  if (hint.empty() && expected.object) {
    constexpr size_t kMostNamed = 12;
    const std::unique_ptr<Fields> fields = expected.object();
    std::vector<std::string> keys;
    for (const Field& field : fields->all()) keys.push_back(field.name);
    if (keys.size() <= kMostNamed) hint = cat("write {KEY: VALUE}; the keys are ", join(keys));
  }
  if (!hint.empty()) message += "; " + hint;
  problems.add(node.where, path, std::move(message));
  return false;
}

bool read_bool(const ConfigNode& node, bool& value, Problems& problems, const std::string& path) {
  const std::optional<bool> parsed = is_plain_scalar(node) ? parse_bool(node.text()) : std::nullopt;
  if (!parsed) return wrong_type(node, FieldTraits<bool>::type(), problems, path);
  value = *parsed;
  return true;
}

bool read_int(const ConfigNode& node, int64_t& value, Problems& problems, const std::string& path) {
  const Parsed parsed = is_plain_scalar(node) ? parse_integer(node.text(), value) : Parsed::no_number;
  if (parsed == Parsed::too_large) problems.add(node.where, path, "does not fit 64 bits; got " + node.describe());
  if (parsed == Parsed::no_number) wrong_type(node, FieldTraits<int64_t>::type(), problems, path);
  return parsed == Parsed::ok;
}

bool read_double(const ConfigNode& node, double& value, Problems& problems, const std::string& path) {
  const Parsed parsed = is_plain_scalar(node) ? parse_number(node.text(), value) : Parsed::no_number;
  if (parsed == Parsed::too_large) problems.add(node.where, path, "does not fit a double; got " + node.describe());
  if (parsed == Parsed::no_number) wrong_type(node, FieldTraits<double>::type(), problems, path);
  return parsed == Parsed::ok;
}

bool read_float(const ConfigNode& node, float& value, Problems& problems, const std::string& path) {
  double wide = 0;
  if (!read_double(node, wide, problems, path)) return false;
  if (std::isfinite(wide) && std::abs(wide) > static_cast<double>(std::numeric_limits<float>::max())) {
    problems.add(node.where, path, "does not fit a float; got " + node.describe());
    return false;
  }
  value = static_cast<float>(wide);
  return true;
}

ConfigNode write_float(float value) {
  if (!std::isfinite(value)) return ConfigNode::number(value);
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  double shortest = 0;
  std::from_chars(text, end, shortest);
  return ConfigNode::number(shortest);
}

bool read_string(const ConfigNode& node, std::string& value, Problems& problems, const std::string& path) {
  if (!node.is_scalar()) return wrong_type(node, FieldTraits<std::string>::type(), problems, path);
  value = node.text();
  return true;
}

bool read_batch_limit(const ConfigNode& node, BatchLimit& value, Problems& problems, const std::string& path) {
  int64_t count = 0;
  double fraction = 0;
  if (is_plain_scalar(node) && parse_integer(node.text(), count) == Parsed::ok && count >= 0) {
    value = BatchLimit(count);
    return true;
  }
  if (is_plain_scalar(node) && parse_number(node.text(), fraction) == Parsed::ok && fraction >= 0 && fraction <= 1) {
    value = BatchLimit(fraction);
    return true;
  }
  return wrong_type(node, FieldTraits<BatchLimit>::type(), problems, path);
}

bool read_interval(const ConfigNode& node, Interval& value, Problems& problems, const std::string& path) {
  const std::optional<Interval> parsed = node.is_scalar() ? Interval::parse(node.text()) : std::nullopt;
  if (!parsed) return wrong_type(node, FieldTraits<Interval>::type(), problems, path);
  value = *parsed;
  return true;
}

bool read_length(const ConfigNode& node, Length& value, Problems& problems, const std::string& path) {
  int64_t count = 0;
  if (is_plain_scalar(node) && parse_integer(node.text(), count) == Parsed::ok) {
    value = Length(count);
    return true;
  }
  if (const auto parsed = node.is_scalar() ? Interval::parse(node.text()) : std::nullopt) {
    value = Length(*parsed);
    return true;
  }
  return wrong_type(node, FieldTraits<Length>::type(), problems, path);
}

TypeInfo interval_type(std::vector<std::string> units) {
  return {.kind = TypeInfo::Kind::string,
          .name = cat("interval (", join(units), ")"),
          .pattern = cat("^[0-9.]+(", join(units, "|"), ")$"),
          .units = std::move(units)};
}

}  // namespace fulgur::detail
