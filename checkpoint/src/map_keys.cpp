#include "fulgur/checkpoint/map_keys.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <map>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

struct JoinedParts {
  std::vector<Tensor> tensors;
  std::vector<std::string> names;  // in the file; empty for a part that has not been seen
};

[[noreturn]] void refuse_keys(std::string_view map_name, const std::string& what) {
  throw CheckpointError(cat("[checkpoint.map_keys] key map ", map_name, ": ", what,
                            ". Is the file of another model, or the key map of another one?"));
}

Tensor joined_parts(const JoinedParts& parts, const std::string& name, std::string_view map_name) {
  const Tensor& first = parts.tensors.front();
  for (size_t i = 0; i < parts.tensors.size(); ++i) {
    const Tensor& part = parts.tensors[i];
    if (!part.defined())
      refuse_keys(map_name, cat("part ", i + 1, " of ", parts.tensors.size(), " of ", escape_controls(name),
                                " is not in the file; another part is ",
                                escape_controls(*std::ranges::find_if(
                                    parts.names, [](const std::string& other) { return !other.empty(); }))));
    if (part.dim() == 0 || part.dim() != first.dim() || part.scalar_type() != first.scalar_type() ||
        part.sizes().slice(1) != first.sizes().slice(1))
      refuse_keys(map_name, cat("the parts of ", escape_controls(name), " do not fit together: ",
                                escape_controls(parts.names.front()), " is ", shape_text(first.sizes()), ", ",
                                escape_controls(parts.names[i]), " is ", shape_text(part.sizes())));
  }
  return at::cat(parts.tensors, 0);
}

// `name` without the map's prefix.
std::string_view without_map_prefix(std::string_view name, std::string_view prefix) {
  const bool has = !prefix.empty() && name.starts_with(prefix) && name.size() > prefix.size();
  return name.substr(has ? prefix.size() : 0);
}

}  // namespace

bool knows_a_name(const NamedTensors& tensors, const KeyMap& map) {
  const std::vector<KeyRule> rules = map.rules();
  const std::string prefix = map.prefix();
  return rules.empty() || std::ranges::any_of(tensors, [&](const auto& item) {
           return std::ranges::any_of(rules, [&](const KeyRule& rule) {
             return renamed_by(rule, without_map_prefix(item.first, prefix)).has_value();
           });
         });
}

NamedTensors map_keys(const NamedTensors& tensors, const KeyMap& map, std::string_view map_name) {
  const std::vector<KeyRule> rules = map.rules();
  const std::string prefix = map.prefix();
  NamedTensors mapped;
  std::map<std::string, JoinedParts> joined;
  for (const auto& [name, tensor] : tensors) {
    const std::string_view rest = without_map_prefix(name, prefix);
    std::optional<std::string> renamed;
    const auto rule = std::ranges::find_if(
        rules, [&](const KeyRule& each) { return (renamed = renamed_by(each, rest)).has_value(); });
    if (rule == rules.end()) {
      mapped.emplace_back(rest, tensor);
      continue;
    }
    if (renamed->empty()) continue;
    if (rule->transpose && tensor.dim() != 2)
      refuse_keys(map_name, cat(escape_controls(name), " must be a matrix, which is transposed; it is ",
                                shape_text(tensor.sizes())));
    const Tensor value = rule->transpose ? tensor.t() : tensor;
    if (rule->parts <= 1) {
      mapped.emplace_back(*renamed, value);
      continue;
    }
    JoinedParts& parts = joined[*renamed];
    parts.tensors.resize(static_cast<size_t>(rule->parts));
    parts.names.resize(static_cast<size_t>(rule->parts));
    const auto place = static_cast<size_t>(rule->part);
    if (parts.tensors[place].defined())
      refuse_keys(map_name, cat(escape_controls(parts.names[place]), " and ", escape_controls(name),
                                " are the same part of ", escape_controls(*renamed)));
    parts.tensors[place] = value;
    parts.names[place] = name;
  }
  for (const auto& [name, parts] : joined) mapped.emplace_back(name, joined_parts(parts, name, map_name));
  return mapped;
}

}  // namespace fulgur
