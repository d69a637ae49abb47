#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/config_node.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::test {

/// A file of `make_baselines.py`.
inline nlohmann::json read_baseline(const std::string& name) {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "baselines" / name);
  return nlohmann::json::parse(file);
}

inline ConfigNode to_config(const nlohmann::json& json) {
  if (json.is_object()) {
    ConfigNode map = ConfigNode::map();
    for (const auto& [key, value] : json.items()) map.set(key, to_config(value));
    return map;
  }
  if (json.is_array()) {
    std::vector<ConfigNode> items;
    for (const auto& item : json) items.push_back(to_config(item));
    return ConfigNode::list(std::move(items));
  }
  if (json.is_boolean()) return ConfigNode::boolean(json.get<bool>());
  if (json.is_number_integer()) return ConfigNode::integer(json.get<int64_t>());
  if (json.is_number()) return ConfigNode::number(json.get<double>());
  if (json.is_null()) return ConfigNode::null();
  return ConfigNode::string(json.get<std::string>());
}

/// The component of a case, made as the config makes it.
template <class Base>
std::shared_ptr<Base> make_from(const nlohmann::json& entry) {
  Spec<Base> spec;
  ConfigNode node = ConfigNode::map();
  node.set("class_path", ConfigNode::string(entry.at("class").get<std::string>()));
  node.set("init_args", to_config(entry.at("options")));
  Problems problems;
  spec.read(node, problems, "");
  if (!problems.items().empty()) throw ConfigError(problems.report());
  return spec.create();
}

}  // namespace fulgur::test
