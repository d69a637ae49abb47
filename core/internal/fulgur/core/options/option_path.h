#pragma once

#include <compare>
#include <span>
#include <string>
#include <vector>

#include "fulgur/core/options/config_node.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

/// The place of an option of a component in a config.
struct OptionPath {
  std::string group;                 ///< `model`
  std::vector<std::string> options;  ///< below init_args
  std::string text() const { return group + ".init_args." + join(options, "."); }
  auto operator<=>(const OptionPath&) const = default;
};

/// Of `model.init_args.width`, or `model.width` for short.
inline OptionPath option_path(const std::string& key) {
  const std::vector<std::string> parts = split_text(key, '.');
  OptionPath path{parts.front(), {parts.begin() + 1, parts.end()}};
  if (!path.options.empty() && path.options.front() == "init_args") path.options.erase(path.options.begin());
  return path;
}

/// The node of an option as the config writes it; nullptr if it does not.
template <class Node>
Node* find_option(Node& config, const std::string& group, std::span<const std::string> options) {
  Node* node = config.find(group);
  if (node != nullptr) node = node->find("init_args");
  for (size_t i = 0; node != nullptr && i < options.size(); ++i) node = node->find(options[i]);
  return node;
}

}  // namespace fulgur
