#include "fulgur/checkpoint/key_prefix.h"

#include <ATen/ops/empty.h>

#include <map>
#include <set>

#include "fulgur/checkpoint/map_keys.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

// The first one and two parts of the names, `module.` and `model.module.`, of those that a twentieth of the names have.
std::set<std::string> beginnings_of(const NamedTensors& tensors) {
  std::map<std::string, size_t> found;
  for (const auto& [name, tensor] : tensors) {
    const size_t first = name.find('.');
    if (first == std::string::npos) continue;
    ++found[name.substr(0, first + 1)];
    if (const size_t second = name.find('.', first + 1); second != std::string::npos)
      ++found[name.substr(0, second + 1)];
  }
  std::set<std::string> frequent;
  for (const auto& [beginning, count] : found)
    if (count * 20 >= tensors.size()) frequent.insert(beginning);
  return frequent;
}

int64_t known_names(const std::set<std::string>& of_module, const NamedTensors& tensors, const KeyMap* map) {
  int64_t count = 0;
  try {
    for (const auto& [name, tensor] : map != nullptr ? map_keys(tensors, *map, "") : tensors)
      count += of_module.contains(name) ? 1 : 0;
  } catch (const CheckpointError&) {
    return 0;  // the key map does not fit these names
  }
  return count;
}

}  // namespace

NamedTensors without_prefix(const NamedTensors& tensors, std::string_view prefix) {
  NamedTensors out;
  bool found = false;
  for (const auto& [name, tensor] : tensors) {
    const bool has = name.starts_with(prefix) && name.size() > prefix.size();
    found = found || has;
    out.emplace_back(has ? name.substr(prefix.size()) : name, tensor);
  }
  if (!found)
    throw CheckpointError(cat("[checkpoint.key_prefix] a name in the file must begin with '", escape_controls(prefix),
                              "'; none does. Names in it are such as '",
                              tensors.empty() ? std::string() : escape_controls(tensors.front().first), "'."));
  return out;
}

std::optional<std::string> helpful_prefix(const torch::nn::Module& module, const NamedTensors& tensors,
                                          const KeyMap* map) {
  std::set<std::string> of_module;
  for (const auto& [name, tensor] : module_state(module)) of_module.insert(name);
  for (const auto& [name, first] : parameter_aliases(module)) of_module.insert(name);
  // Only names count, so small tensors stand for those of the file; they are matrices, as some are transposed.
  NamedTensors names;
  for (const auto& [name, tensor] : tensors) names.emplace_back(name, at::empty({1, 1}));
  std::optional<std::string> best;
  int64_t most = known_names(of_module, names, map);
  for (const std::string& beginning : beginnings_of(names)) {
    const int64_t count = known_names(of_module, without_prefix(names, beginning), map);
    if (count <= most) continue;
    most = count;
    best = beginning;
  }
  return best;
}

}  // namespace fulgur::detail
