#include "fulgur/core/options/options.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <unordered_set>

#include "fulgur/core/options/form_hints.h"
#include "fulgur/core/text/text.h"
#include "options/scalar_text.h"

namespace fulgur {

namespace {

using Kind = TypeInfo::Kind;

bool contains(const std::vector<std::string>& texts, std::string_view text) {
  return std::ranges::find(texts, text) != texts.end();
}

/// Whether the kind of `node` matches `type`; conditions are not checked.
bool fits(const ConfigNode& node, const TypeInfo& type) {
  int64_t whole = 0;
  double number = 0;
  if (node.is_null()) return type.nullable || type.kind == Kind::object;
  switch (type.kind) {
    case Kind::boolean:
      return detail::is_plain_scalar(node) && detail::parse_bool(node.text());
    case Kind::integer:
      return detail::is_plain_scalar(node) && detail::parse_integer(node.text(), whole) == detail::Parsed::ok;
    case Kind::number:
      return detail::is_plain_scalar(node) && detail::parse_number(node.text(), number) == detail::Parsed::ok;
    case Kind::string:
    case Kind::path:
      if (!type.units.empty()) return node.is_scalar() && Interval::parse(node.text()).has_value();
      return node.is_scalar() && (type.choices.empty() || contains(type.choices, node.text()));
    case Kind::list:
      return node.is_list();
    case Kind::map:
    case Kind::object:
      return node.is_map();
    case Kind::component:
      return node.is_map() || (node.is_scalar() && (node.quoted() || reads_as_text(node.text())));
    case Kind::any_of:
      return std::ranges::any_of(type.parts, [&](const TypeInfo& part) { return fits(node, part); });
  }
  return false;
}

std::string bound_text(double bound) {
  return bound == std::floor(bound) && std::abs(bound) < 1e15 ? cat(static_cast<int64_t>(bound)) : format_double(bound);
}

std::string range_text(const TypeInfo& type) {
  std::vector<std::string> parts;
  if (type.minimum) parts.push_back("at least " + bound_text(*type.minimum));
  if (type.above) parts.push_back("greater than " + bound_text(*type.above));
  if (type.maximum) parts.push_back("at most " + bound_text(*type.maximum));
  if (type.below) parts.push_back("less than " + bound_text(*type.below));
  return join(parts, " and ");
}

bool in_range(double value, const TypeInfo& type) {
  return !(type.minimum && value < *type.minimum) && !(type.above && value <= *type.above) &&
         !(type.maximum && value > *type.maximum) && !(type.below && value >= *type.below);
}

/// The unit that ends an interval's text (`min` of `30min`).
std::string_view unit_of(std::string_view text) {
  const size_t end = text.find_last_of("0123456789.");
  return end == std::string_view::npos ? text : text.substr(end + 1);
}

bool check_scalar(const ConfigNode& node, const TypeInfo& type, Problems& problems, const std::string& path) {
  int64_t whole = 0;
  double number = 0;
  // Leave what is not an integer to the reader, whose hint is better than a range.
  if (type.kind == Kind::integer && detail::parse_integer(node.text(), whole) != detail::Parsed::ok) return true;
  if (!node.quoted() && detail::parse_number(node.text(), number) == detail::Parsed::ok && !in_range(number, type)) {
    problems.add(node.where, path, cat("must be ", range_text(type), "; got ", node.text()));
    return false;
  }
  if (!type.units.empty() && !Interval::parse(node.text())) return detail::wrong_type(node, type, problems, path);
  if (!type.units.empty() && !contains(type.units, unit_of(node.text()))) {
    problems.add(node.where, path, cat("the unit must be one of ", join(type.units), "; got ", node.text()));
    return false;
  }
  if (!type.choices.empty() && !contains(type.choices, node.text())) {
    problems.add(
        node.where, path,
        cat("must be one of ", join(type.choices), "; got ", node.describe(), did_you_mean(node.text(), type.choices)));
    return false;
  }
  return true;
}

std::string items_text(const TypeInfo& type) {
  const std::string least = type.min_items == type.max_items ? "" : "at least ";
  return cat(least, counted(static_cast<int64_t>(*type.min_items), "item"));
}

bool check_items(const ConfigNode& node, const TypeInfo& type, Problems& problems, const std::string& path) {
  const auto count = static_cast<int64_t>(node.items().size());
  if (node.is_list() && ((type.min_items && count < *type.min_items) || (type.max_items && count > *type.max_items))) {
    problems.add(node.where, path, cat("needs ", items_text(type), "; got ", count));
    return false;
  }
  if (type.parts.empty()) return true;
  bool good = true;
  for (size_t i = 0; i < node.items().size(); ++i) {
    good &= check_conditions(node.items()[i], type.parts[0], problems, join_path(path, std::to_string(i)));
  }
  for (const auto& [key, item] : node.entries())
    good &= check_conditions(item, type.parts[0], problems, join_path(path, key));
  return good;
}

bool check_alternatives(const ConfigNode& node, const TypeInfo& type, Problems& problems, const std::string& path) {
  for (const TypeInfo& part : type.parts) {
    if (!fits(node, part)) continue;
    // A range on the whole option applies to whichever number was written.
    if (node.is_scalar() && detail::is_number_kind(part.kind) && !check_scalar(node, type, problems, path))
      return false;
    return check_conditions(node, part, problems, path);
  }
  return detail::wrong_type(node, type, problems, path);
}

// The nearest of the names, or all of them if none is near and they are few.
std::string known_keys(const std::string& key, const std::vector<std::string>& names) {
  constexpr size_t kFew = 20;
  std::string hint = did_you_mean(key, names);
  return !hint.empty() || names.size() > kFew ? hint : cat("; there are: ", join(names));
}

std::string unknown_key(const std::string& key, const std::vector<std::string>& names, const std::string& class_name) {
  const std::string hint = known_keys(key, names);
  if (class_name.empty()) return "unknown key" + hint;
  return cat("unknown key", as_sentence(hint), "`describe ", class_name, "` lists the options of this class");
}

// For a key that an option of these has, which is a map: where to write it.
std::optional<std::string> place_in_map(const std::vector<Field>& fields, const std::string& key) {
  for (const Field& field : fields)
    if (field.type.object && field.type.object()->find(key))
      return cat("it is an option of ", field.name, ": write `", field.name, ": {", key, ": …}`");
  return std::nullopt;
}

/// One type of several: the conditions on a list stand in parentheses, so that they are not taken for those of the
/// rest.
std::string alternative_text(const TypeInfo& part) {
  std::string text = type_text(part);
  const bool is_list = part.kind == Kind::list && !part.parts.empty() && part.parts[0].choices.empty();
  const size_t comma = is_list ? text.find(", ") : std::string::npos;
  return comma == std::string::npos ? text : text.replace(comma, 2, " (") + ")";
}

}  // namespace

std::string type_text(const TypeInfo& type) {
  std::string text;
  if (!type.choices.empty())
    text = "one of " + join(type.choices);
  else if (type.kind == Kind::any_of) {
    std::vector<std::string> parts;
    for (const TypeInfo& part : type.parts) {
      const std::string range = range_text(part);
      if (part.choices.size() == 1)
        parts.push_back(part.choices[0]);
      else
        parts.push_back(range.empty() ? alternative_text(part) : cat(part.name, " (", range, ")"));
    }
    text = join(parts, " or ");
  } else if (type.kind == Kind::list && !type.parts.empty()) {
    text = "list of " + type_text(type.parts[0]);
  } else if (type.kind == Kind::map && !type.parts.empty()) {
    text = "map of " + type_text(type.parts[0]);
  } else {
    text = type.name;
  }
  const std::string range = range_text(type);
  if (!range.empty()) text += ", " + range;
  if (type.min_items) text += cat(", ", items_text(type));
  if (type.nullable) text += ", or null";
  return text;
}

Fields::~Fields() = default;

const Field* Fields::find(std::string_view name) const {
  const auto found = std::ranges::find(fields_, name, &Field::name);
  return found == fields_.end() ? nullptr : &*found;
}

std::vector<std::string> Fields::names() const {
  std::vector<std::string> names;
  for (const Field& field : fields_) names.push_back(field.name);
  return names;
}

Field& Fields::append(std::string_view name, std::string_view doc, TypeInfo type) {
  if (find(name)) throw std::logic_error(cat("[fields] option '", name, "' is declared twice"));
  Field field;
  field.name = name;
  field.doc = doc;
  field.type = std::move(type);
  fields_.push_back(std::move(field));
  return fields_.back();
}

void Fields::read(const ConfigNode& node, Problems& problems, const std::string& path) const {
  static const ConfigNode empty = ConfigNode::map();
  if (!node.is_map() && !node.is_null()) {
    std::string hint = detail::is_plain_scalar(node) ? detail::missing_space_hint(node.text()) : std::string();
    if (node.is_list() && !node.items().empty() && node.items().front().is_map()) hint = "write its keys without '- '";
    problems.add(node.where, path,
                 cat("expected a map of options; got ", node.describe(), hint.empty() ? "" : "; ", hint));
    return;
  }
  const ConfigNode& map = node.is_map() ? node : empty;
  std::unordered_set<const Field*> given;
  for (const auto& [key, value] : map.entries()) {
    const Field* field = find(key);
    const std::string key_path = join_path(path, key);
    if (!field) {
      const Location& where = value.key_where.source.empty() ? value.where : value.key_where;
      std::optional<std::string> hint = hint_for_unknown ? hint_for_unknown(key) : std::nullopt;
      if (!hint) hint = place_in_map(fields_, key);
      if (key == "<<")
        hint = "merge keys are not supported; write the keys out, or give the shared part in a separate --config file";
      // `{max_epochs:3}`
      if (const std::string spaced = detail::missing_space_hint(key); !spaced.empty() && value.is_null()) hint = spaced;
      if (hint)
        problems.add(where, key_path, "unknown key; " + *hint);
      else if (fields_.empty())
        problems.add(where, key_path,
                     class_name.empty() ? "unknown key; there are no options here"
                                        : cat("unknown key; ", class_name, " has no options"));
      else
        problems.add(where, key_path, unknown_key(key, names(), class_name));
      continue;
    }
    given.insert(field);
    const Kind kind = field->type.kind;
    if (value.is_null() && field->required && !field->type.nullable && kind != Kind::component &&
        kind != Kind::any_of) {
      problems.add(value.where, key_path,
                   cat("expected ", type_text(field->type), "; got null; the option is required: ", field->doc));
      continue;
    }
    if (check_conditions(value, field->type, problems, key_path)) field->read(value, problems, key_path);
  }
  for (const Field& field : fields_) {
    const std::string field_path = join_path(path, field.name);
    if (field.required && !given.contains(&field) && !problems.may_miss(field_path)) {
      problems.add(node.where, field_path, "required option is missing: " + field.doc);
    }
  }
}

ConfigNode Fields::write() const {
  std::vector<ConfigNode::Entry> entries;
  for (const Field& field : fields_) {
    ConfigNode value = field.write();
    value.comment = cat(field.doc, " (", field.required ? "required; " : "", type_text(field.type), ")");
    entries.emplace_back(field.name, std::move(value));
  }
  return ConfigNode::map(std::move(entries));
}

bool check_conditions(const ConfigNode& written, const TypeInfo& type, Problems& problems, const std::string& path) {
  if (written.is_null()) return fits(written, type) || detail::wrong_type(written, type, problems, path);
  if (type.kind == Kind::any_of) return check_alternatives(written, type, problems, path);
  if (written.is_scalar()) return check_scalar(written, type, problems, path);
  const bool has_items = type.kind == Kind::list ? written.is_list() : type.kind == Kind::map && written.is_map();
  return !has_items || check_items(written, type, problems, path);
}

AnyOptions::~AnyOptions() = default;

namespace {

/// The interval in a type, possibly as an alternative or an item; or nullptr.
TypeInfo* interval_part(TypeInfo& type) {
  if (!type.units.empty()) return &type;
  for (TypeInfo& part : type.parts)
    if (TypeInfo* found = interval_part(part)) return found;
  return nullptr;
}

}  // namespace

FieldRef& FieldRef::units(const std::vector<std::string>& names) {
  TypeInfo* interval = interval_part(field_->type);
  if (!interval) throw std::logic_error(cat("[fields] units() of '", field_->name, "': the option is not an interval"));
  const bool nullable = interval->nullable;
  *interval = detail::interval_type(names);
  interval->nullable = nullable;
  return *this;
}

}  // namespace fulgur
