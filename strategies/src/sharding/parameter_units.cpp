#include "sharding/parameter_units.h"

#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <map>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/matches_pattern.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

std::vector<std::string> elements_of_lists(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    if (std::dynamic_pointer_cast<torch::nn::ModuleListImpl>(item.value()))
      for (const auto& element : item.value()->named_children()) names.push_back(cat(item.key(), ".", element.key()));
  return names;
}

std::vector<std::string> matching_modules(const torch::nn::Module& module, const std::vector<std::string>& patterns) {
  std::vector<std::string> names, all;
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    if (!item.value()->parameters().empty()) all.push_back(item.key());
  for (const std::string& pattern : patterns) {
    const size_t before = names.size();
    std::ranges::copy_if(all, std::back_inserter(names),
                         [&](const std::string& name) { return matches_pattern(pattern, name); });
    if (names.size() == before)
      throw ConfigError(cat("[strategies] a pattern of units must match a module with parameters; '",
                            escape_controls(pattern), "' matches none. The modules are ", join_some(all, 10), "."));
  }
  return names;
}

// The outermost of `modules` that contains the parameter; empty if none does.
std::string unit_of(const std::string& parameter, const std::vector<std::string>& modules) {
  std::string found;
  for (const std::string& name : modules) {
    const bool contains =
        parameter.size() > name.size() && parameter.starts_with(name) && parameter[name.size()] == '.';
    if (contains && (found.empty() || name.size() < found.size())) found = name;
  }
  return found;
}

}  // namespace

std::vector<ParameterUnit> parameter_units(const torch::nn::Module& module,
                                           const std::vector<NamedParameter>& parameters,
                                           const std::optional<std::vector<std::string>>& patterns) {
  const std::vector<std::string> modules = patterns ? matching_modules(module, *patterns) : elements_of_lists(module);
  std::vector<ParameterUnit> units;
  std::map<std::string, size_t> places;
  for (const NamedParameter& parameter : parameters) {
    const std::string name = unit_of(parameter.name, modules);
    const auto [place, is_new] = places.try_emplace(name, units.size());
    if (is_new) units.push_back({.name = name, .parameters = {}});
    units[place->second].parameters.push_back(parameter);
  }
  return units;
}

}  // namespace fulgur::detail
