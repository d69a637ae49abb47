#include "completion/key_tree.h"

#include <algorithm>

#include "fulgur/core/text/text.h"

namespace fulgur::cli {
namespace {

using Kind = TypeInfo::Kind;

const ConfigNode* child_of(const ConfigNode* node, const std::string& key) {
  return node != nullptr && node->is_map() ? node->find(key) : nullptr;
}

/// The alternative that has keys below it: the list if the config has one.
const TypeInfo& with_keys(const TypeInfo& type, const ConfigNode* node) {
  if (type.kind != Kind::any_of) return type;
  const bool is_list = node != nullptr && node->is_list();
  for (const Kind kind : {is_list ? Kind::list : Kind::component, Kind::component, Kind::object, Kind::list, Kind::map})
    for (const TypeInfo& part : type.parts)
      if (part.kind == kind) return part;
  return type;
}

}  // namespace

KeyTree::KeyTree(ConfigNode chosen) : chosen_(std::move(chosen)), schema_(FieldTraits<Config>::type().object()) {}

KeyTree::Place KeyTree::top() const { return {.node = &chosen_, .fields = schema_.get()}; }

KeyTree::Place KeyTree::component(const TypeInfo& type, const ConfigNode* node) {
  Place place{.type = &type, .node = node};
  const ComponentRegistry& registry = component_registry(type.registry_kind);
  const ConfigNode* name = node != nullptr && node->is_scalar() ? node : child_of(node, "class_path");
  const ComponentInfo* info = name != nullptr ? registry.find(name->text()) : nullptr;
  if (info == nullptr) return place;
  components_.push_back(std::make_unique<OptionFields>(info->make_options()));
  place.fields = &components_.back()->fields;
  if (auto common = registry.make_common_options()) {
    components_.push_back(std::make_unique<OptionFields>(std::move(common)));
    place.common = &components_.back()->fields;
  }
  return place;
}

KeyTree::Place KeyTree::place_of(const TypeInfo& written, const ConfigNode* node) {
  const TypeInfo& type = with_keys(written, node);
  if (type.kind == Kind::component) {
    Place place = component(type, node);
    place.type = &written;
    return place;
  }
  Place place{.type = &written, .node = node};
  if (type.kind == Kind::object && type.object) {
    objects_.push_back(type.object());
    place.fields = objects_.back().get();
  } else if (type.kind == Kind::list && !type.parts.empty() && node != nullptr && node->is_list() &&
             !node->items().empty()) {
    // What stands below a list belongs to its last element.
    const Place last = place_of(type.parts.front(), &node->items().back());
    place.fields = last.fields;
    place.common = last.common;
  }
  return place;
}

KeyTree::Place KeyTree::step(const Place& place, const std::string& part) {
  if (place.type != nullptr) {
    const TypeInfo& type = with_keys(*place.type, place.node);
    if (type.kind == Kind::component && part == "init_args") return place;
    const auto index = parse_whole<size_t>(part);
    if (type.kind == Kind::list && index && place.node != nullptr && place.node->is_list() &&
        *index < place.node->items().size() && !type.parts.empty())
      return place_of(type.parts.front(), &place.node->items()[*index]);
  }
  const ConfigNode* node = place.node;
  if (node != nullptr && node->is_list()) node = node->items().empty() ? nullptr : &node->items().back();
  if (const ConfigNode* arguments = child_of(node, "init_args"); arguments != nullptr && place.type != nullptr)
    node = arguments;
  for (const Fields* fields : {place.fields, place.common})
    if (const Field* field = fields != nullptr ? fields->find(part) : nullptr)
      return place_of(field->type, child_of(node, part));
  return {};
}

KeyTree::Place KeyTree::walk(const std::vector<std::string>& path) {
  Place place = top();
  for (const std::string& part : path) place = step(place, part);
  return place;
}

std::vector<const Field*> KeyTree::below(const std::vector<std::string>& path) {
  const Place place = walk(path);
  std::vector<const Field*> fields;
  for (const Fields* from : {place.fields, place.common}) {
    if (from == nullptr) continue;
    for (const Field& field : from->all())
      if (std::ranges::none_of(fields, [&](const Field* known) { return known->name == field.name; }))
        fields.push_back(&field);
  }
  return fields;
}

std::string KeyTree::class_of(const std::string& key) const {
  const ConfigNode* node = chosen_.find(key);
  if (const ConfigNode* name = child_of(node, "class_path")) node = name;
  return node != nullptr && node->is_scalar() ? node->text() : std::string();
}

const TypeInfo* KeyTree::type_of(const std::vector<std::string>& path) { return walk(path).type; }

}  // namespace fulgur::cli
