#include <algorithm>

#include "config/config_tree.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/config.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur::config {

namespace {

using Kind = TypeInfo::Kind;

constexpr size_t kMaxSegments = 64;

bool is_yaml_file(const ConfigNode& value) {
  return value.is_scalar() && (value.text().ends_with(".yaml") || value.text().ends_with(".yml"));
}

/// Marks every node below as coming from `where`; line numbers within a one-line value are useless.
void set_places(ConfigNode& node, const Location& where) {
  node.where = node.key_where = where;
  for (ConfigNode& item : node.items()) set_places(item, where);
  for (auto& [key, value] : node.entries()) set_places(value, where);
}

bool has_arguments(const ConfigNode& node) {
  return node.where.argument > 0 || std::ranges::any_of(node.items(), has_arguments) ||
         std::ranges::any_of(node.entries(), [](const auto& entry) { return has_arguments(entry.second); });
}

/// What arguments have set of a value or a map.
std::optional<ConfigNode> set_by_arguments(const ConfigNode& node) {
  if (!node.is_map() || node.entries().empty())
    return node.where.argument > 0 ? std::optional<ConfigNode>(node) : std::nullopt;
  ConfigNode part = ConfigNode::map();
  part.where = node.where;
  part.key_where = node.key_where;
  for (const auto& [key, value] : node.entries())
    if (std::optional<ConfigNode> below = set_by_arguments(value)) part.set(key, std::move(*below));
  return part.entries().empty() ? std::nullopt : std::optional<ConfigNode>(std::move(part));
}

}  // namespace

ConfigNode parse_value(const std::string& text, const Location& where, Problems& problems) {
  ConfigNode value;
  const char first = text.empty() ? '\0' : text.front();
  if (first == '[' || first == '{' || first == '"' || first == '\'')
    value = parse_yaml(text, where.source, problems);
  else if (!text.empty() && text != "null" && text != "~" && text != "Null" && text != "NULL")
    value = ConfigNode::scalar(text);
  set_places(value, where);
  return value;
}

Location Overrider::key_place() const {
  Location where = value_.where;
  if (where.argument > 0) where.column = 3;
  return where;
}

void Overrider::problem(std::string message) { problems_.add(key_place(), key_, std::move(message)); }

void Overrider::apply(ConfigNode& root, const std::string& key, const std::string& value, const Location& where) {
  key_ = key;
  append_ = key.ends_with('+');
  path_ = split_text(append_ ? std::string_view(key).substr(0, key.size() - 1) : std::string_view(key), '.');
  // Whether a `{` begins a map or a text is known only with the type of the option.
  text_ = value;
  unreadable_ = Problems();
  value_ = parse_value(value, where, unreadable_);
  if (path_.size() > kMaxSegments || std::ranges::any_of(path_, [](const auto& part) { return part.empty(); })) {
    return problem("is not a key path; write names separated by dots");
  }
  created_.clear();
  const size_t problems_before = problems_.items().size();
  set_in_fields(root, schema_, 0);
  if (problems_.items().size() != problems_before) remove_created();
}

// What an override that failed has created on its way has no value, which would be a second mistake.
void Overrider::remove_created() {
  for (auto item = created_.rbegin(); item != created_.rend(); ++item) {
    const auto& [parent, key] = *item;
    const ConfigNode* const found = parent->find(key);
    if (found && (found->is_null() || (found->is_map() && found->entries().empty()))) parent->erase(key);
  }
}

bool Overrider::report_unreadable() {
  constexpr size_t kMost = 60;
  for (const Problem& found : unreadable_.items())
    problems_.add(value_.where, key_,
                  cat("the value is not valid YAML: ", found.message, ". If it is text, quote it inside the argument: ",
                      text_.size() > kMost ? "'\"…\"'" : cat("'\"", text_, "\"'")));
  return !unreadable_.empty();
}

ConfigNode& Overrider::child(ConfigNode& node, const std::string& key) {
  if (!node.is_map()) node.where = value_.where;
  if (!node.find(key)) created_.emplace_back(&node, key);
  ConfigNode& found = node.get_or_add(key);
  if (found.key_where.source.empty()) found.where = found.key_where = key_place();
  return found;
}

const Fields* Overrider::fields_of(const TypeInfo& type) {
  std::unique_ptr<Fields>& made = objects_[&type];
  if (!made && type.object) made = type.object();
  return made.get();
}

const Fields* Overrider::fields_of_component(const std::string& kind, const std::string& name) {
  std::unique_ptr<OptionFields>& made = components_[{kind, name}];
  const ComponentInfo* info = made ? nullptr : component_registry(kind).find(name);
  if (info) made = std::make_unique<OptionFields>(info->make_options());
  return made ? &made->fields : nullptr;
}

const TypeInfo& Overrider::alternative(const ConfigNode& node, const TypeInfo& type, size_t at) const {
  const auto part = [&](Kind kind) {
    const auto found = std::ranges::find(type.parts, kind, &TypeInfo::kind);
    return found == type.parts.end() ? nullptr : &*found;
  };
  const bool wants_item = at == path_.size() ? append_ : parse_whole<size_t>(path_[at]).has_value();
  const TypeInfo* list = part(Kind::list);
  if (list != nullptr && (wants_item || node.is_list())) return *list;
  for (const Kind kind : {Kind::component, Kind::object, Kind::map}) {
    if (const TypeInfo* found = part(kind)) return *found;
  }
  return list != nullptr ? *list : type;
}

void Overrider::set(ConfigNode& node, const TypeInfo* type, size_t at) {
  if (type != nullptr && type->kind == Kind::any_of && (at < path_.size() || append_))
    type = &alternative(node, *type, at);
  if (at == path_.size()) return append_ ? append(node, type) : assign(node, type);
  // The reader will report the unknown key.
  if (type == nullptr) return set(child(node, path_[at]), nullptr, at + 1);
  switch (type->kind) {
    case Kind::object:
      if (const Fields* fields = fields_of(*type)) return set_in_fields(node, *fields, at);
      return set(child(node, path_[at]), nullptr, at + 1);
    case Kind::component:
      return set_in_component(node, *type, at);
    case Kind::list:
      return set_in_list(node, *type, at);
    case Kind::map:
      return set_in_map(node, *type, at);
    default:
      return problem(
          cat("'", path_[at - 1], "' is one value (", type_text(*type), "); it has no '", path_[at], "' below it"));
  }
}

void Overrider::set_in_fields(ConfigNode& node, const Fields& fields, size_t at) {
  const Field* field = fields.find(path_[at]);
  set(child(node, path_[at]), field ? &field->type : nullptr, at + 1);
}

// Whether the key stands beside the class path of a component, and is not one of the class's own options.
bool Overrider::is_common_option(const ConfigNode& node, const TypeInfo& type, size_t at) {
  const std::unique_ptr<AnyOptions> common = component_registry(type.registry_kind).make_common_options();
  if (!common) return false;
  Fields common_fields;
  common->fields(common_fields);
  const ConfigNode* name = node.is_scalar() ? &node : node.find("class_path");
  const Fields* own = name != nullptr ? fields_of_component(type.registry_kind, name->text()) : nullptr;
  return common_fields.find(path_[at]) != nullptr && (own == nullptr || own->find(path_[at]) == nullptr);
}

void Overrider::set_in_component(ConfigNode& node, const TypeInfo& type, size_t at) {
  if (node.is_scalar()) node = as_component(std::move(node));
  if (path_[at] == "class_path" && at + 1 == path_.size()) return assign(node, &type);
  const size_t first = path_[at] == "init_args" ? at + 1 : at;
  if (first == at && is_common_option(node, type, at)) return set(child(node, path_[at]), nullptr, at + 1);
  ConfigNode& args = child(node, "init_args");
  if (first == path_.size()) {
    if (!report_unreadable()) merge_into(args, value_);
    return;
  }
  const ConfigNode* name = node.find("class_path");
  const Fields* fields = name != nullptr ? fields_of_component(type.registry_kind, name->text()) : nullptr;
  if (fields != nullptr) return set_in_fields(args, *fields, first);
  set(child(args, path_[first]), nullptr, first + 1);
}

bool Overrider::last_has_option(const ConfigNode& last, const TypeInfo& type, size_t at) {
  const ConfigNode* name = last.is_scalar() ? &last : last.find("class_path");
  const Fields* fields = name != nullptr ? fields_of_component(type.registry_kind, name->text()) : nullptr;
  const bool is_option = path_[at] != "class_path" && path_[at] != "init_args";
  if (fields == nullptr || !is_option || is_common_option(last, type, at)) return true;
  // The reader reports a former name, with its present one.
  if (fields->hint_for_unknown && fields->hint_for_unknown(path_[at])) return true;
  if (fields->find(path_[at])) return true;
  const std::string list = key_.substr(0, key_.find('.' + path_[at]));
  problem(cat("the last element of the list, ", name->text(), ", has no option '", path_[at], "'",
              as_sentence(did_you_mean(path_[at], fields->names())),
              "For an option of another component, first append it with --", list, "+=NAME"));
  return false;
}

void Overrider::set_in_list(ConfigNode& node, const TypeInfo& type, size_t at) {
  const TypeInfo* item = type.parts.empty() ? nullptr : &type.parts[0];
  if (!node.is_list() || node.items().empty()) {
    return problem(
        cat("the list is empty; append to it first with ", key_.substr(0, key_.find('.' + path_[at])), "+=NAME"));
  }
  const std::optional<size_t> index = parse_whole<size_t>(path_[at]);
  if (!index) {
    if (item != nullptr && item->kind == Kind::component && !last_has_option(node.items().back(), *item, at)) return;
    return set(node.items().back(), item, at);
  }
  if (*index >= node.items().size())
    return problem(cat("the list has ", counted(static_cast<int64_t>(node.items().size()), "item"),
                       "; there is no item ", *index));
  set(node.items()[*index], item, at + 1);
}

void Overrider::set_in_map(ConfigNode& node, const TypeInfo& type, size_t at) {
  const TypeInfo* item = type.parts.empty() ? nullptr : &type.parts[0];
  const bool holds_scalars = item == nullptr || (item->kind != Kind::map && item->kind != Kind::object &&
                                                 item->kind != Kind::component && item->kind != Kind::list);
  if (!holds_scalars) return set(child(node, path_[at]), item, at + 1);
  // Keys of a map of scalars may contain dots (`link.model.init_args.width`).
  const std::string key = join({path_.begin() + static_cast<std::ptrdiff_t>(at), path_.end()}, ".");
  set(child(node, key), item, path_.size());
}

bool Overrider::load_group(ConfigNode& node) {
  ConfigNode loaded = load_yaml_file(value_.text(), problems_);
  // A complete config may also be given: its section of this name is used.
  if (loaded.is_map() && loaded.entries().size() == 1 && loaded.entries()[0].first == path_.back()) {
    ConfigNode inner = std::move(loaded.entries()[0].second);
    loaded = std::move(inner);
  }
  if (loaded.is_null()) return false;
  merge_into(node, std::move(loaded));
  return true;
}

void Overrider::assign(ConfigNode& node, const TypeInfo* type) {
  const Location key_where = key_place(), where = value_.where;
  // File name templates begin with `{`. An empty value is null only for options that may be null, and for paths.
  const bool is_text = type != nullptr && (type->kind == Kind::string || type->kind == Kind::path);
  const bool is_empty_text = is_text && text_.empty() && type->kind == Kind::string && !type->nullable;
  if ((is_text && text_.starts_with('{')) || is_empty_text) {
    value_ = ConfigNode::string(text_);
    set_places(value_, where);
  } else if (report_unreadable()) {
    return;
  }
  // An option of several types that has the options of a component: a name is that of its class.
  if (type != nullptr && type->kind == Kind::any_of && node.is_map() &&
      (value_.is_map() || (value_.is_scalar() && (value_.quoted() || reads_as_text(value_.text()))))) {
    const TypeInfo& other = alternative(node, *type, path_.size());
    if (other.kind == Kind::component) type = &other;
  }
  const bool is_group = type != nullptr && (type->kind == Kind::component || type->kind == Kind::object);
  const ConfigNode before = is_group ? node : ConfigNode();
  if (is_group && is_yaml_file(value_)) {
    load_group(node);
  } else if (type != nullptr && type->kind == Kind::component && value_.is_scalar()) {
    ConfigNode chosen = ConfigNode::map();
    chosen.where = value_.where;
    chosen.set("class_path", value_);
    merge_into(node, std::move(chosen));
  } else if (is_group && value_.is_map()) {
    merge_into(node, value_);
  } else {
    node = value_;
  }
  keep_arguments(node, before);
  node.key_where = key_where;
}

// Another class drops what files have set for the one before. What arguments have set stays: they may come in any
// order.
void Overrider::keep_arguments(ConfigNode& node, ConfigNode before) {
  if (!node.is_map() || !before.is_map()) return;
  const ConfigNode* const name = node.find("class_path");
  const ConfigNode* const earlier = before.find("class_path");
  if (!name || !earlier || name->same_as(*earlier)) {
    for (auto& [key, value] : node.entries())
      if (ConfigNode* const other = before.find(key)) keep_arguments(value, std::move(*other));
    return;
  }
  report_changed_lists(before);
  ConfigNode all = as_component(*name);
  before.erase("class_path");
  if (std::optional<ConfigNode> kept = set_by_arguments(before)) {
    merge_into(all, std::move(*kept));
    merge_into(all, std::move(node));
    node = std::move(all);
  }
}

void Overrider::report_changed_lists(const ConfigNode& before) {
  for (const auto& [key, value] : before.entries()) {
    if (value.is_list() && value.where.argument == 0 && std::ranges::any_of(value.items(), has_arguments))
      problem(cat("an argument before it changes an item of '", key,
                  "', a list of the class that was named before. Name the class first, and set the whole list"));
    report_changed_lists(value);
  }
}

void Overrider::append(ConfigNode& node, const TypeInfo* type) {
  if (report_unreadable()) return;
  if (type != nullptr && type->kind != Kind::list) return problem("is not a list: '+' cannot append to it");
  if (!node.is_list()) {
    // A single logger counts as a list of one; a switch (`true`, `false`) is replaced.
    const bool one = node.is_map() || (node.is_scalar() && (node.quoted() || reads_as_text(node.text())));
    ConfigNode list = one ? ConfigNode::list({node}) : ConfigNode::list();
    list.where = value_.where;
    list.key_where = node.key_where;
    node = std::move(list);
  }
  if (value_.is_list())
    node.items().insert(node.items().end(), value_.items().begin(), value_.items().end());
  else
    node.items().push_back(value_);
}

namespace {

bool is_top_key(std::string_view key) {
  Config config;
  Fields fields;
  config.fields(fields);
  return fields.find(key) != nullptr;
}

}  // namespace

std::optional<std::string> key_of_variable(std::string_view name) {
  constexpr std::string_view kPrefix = "FULGUR_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::string key;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name.substr(i, 2) == "__") {
      key += '.';
      ++i;
    } else {
      key += name[i] >= 'A' && name[i] <= 'Z' ? static_cast<char>(name[i] - 'A' + 'a') : name[i];
    }
  }
  // A key of one part is one of the config's groups and values; other variables are not meant for it.
  if (key.find('.') == std::string::npos && !is_top_key(key)) return std::nullopt;
  return key;
}

}  // namespace fulgur::config
