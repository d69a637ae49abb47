#include <unordered_map>

#include "config/config_tree.h"

namespace fulgur::config {

namespace {

bool has_component_key(const ConfigNode& node) {
  return node.find("class_path") != nullptr || node.find("init_args") != nullptr;
}

}  // namespace

ConfigNode as_component(ConfigNode name) {
  ConfigNode node = ConfigNode::map();
  node.where = name.where;
  node.key_where = name.key_where;
  node.set("class_path", std::move(name));
  return node;
}

void merge_into(ConfigNode& base, ConfigNode over) {
  if (base.is_map() && base.find("class_path") != nullptr && over.is_scalar()) over = as_component(std::move(over));
  if (base.is_scalar() && over.is_map() && has_component_key(over)) base = as_component(std::move(base));
  if (!base.is_map() || !over.is_map()) {
    base = std::move(over);
    return;
  }
  const ConfigNode* old_class = base.find("class_path");
  const ConfigNode* new_class = over.find("class_path");
  if (old_class != nullptr && new_class != nullptr && !old_class->same_as(*new_class)) {
    base = std::move(over);
    return;
  }
  base.where = over.where;
  std::unordered_map<std::string, size_t> index;
  for (size_t i = 0; i < base.entries().size(); ++i) index.emplace(base.entries()[i].first, i);
  for (auto& [key, value] : over.entries()) {
    const auto found = index.find(key);
    if (found == index.end()) {
      base.entries().emplace_back(key, std::move(value));
      continue;
    }
    ConfigNode& old = base.entries()[found->second].second;
    const Location key_where = value.key_where;
    merge_into(old, std::move(value));
    old.key_where = key_where;
  }
}

}  // namespace fulgur::config
