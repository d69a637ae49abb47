#include "tensor/divided_layers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/matches_pattern.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

struct OwnParameters {
  std::string layer;
  std::vector<NamedParameter> values;  // by their names in the layer
};

// Modules with parameters of their own.
std::vector<OwnParameters> layers_of(const LightningModule& module) {
  std::vector<OwnParameters> layers;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    OwnParameters layer{.layer = item.key(), .values = {}};
    for (const auto& parameter : item.value()->named_parameters(/*recurse=*/false))
      if (parameter.value().defined()) layer.values.push_back({parameter.key(), parameter.value()});
    if (!layer.values.empty()) layers.push_back(std::move(layer));
  }
  return layers;
}

[[noreturn]] void refuse_layer(const std::string& layer, std::string_view why) {
  throw ConfigError(cat("[strategies.mesh] tensor_plan: '", escape_controls(layer), "' ", why));
}

const TensorRule* rule_of(const std::string& layer, const TensorPlan& plan, std::vector<bool>& used) {
  const TensorRule* found = nullptr;
  for (size_t i = 0; i < plan.size(); ++i) {
    if (!matches_pattern(plan[i].pattern, layer)) continue;
    used[i] = true;
    if (!found) found = &plan[i];
  }
  return found;
}

// The patterns of options have no order.
void check_one_rule(const std::string& layer, const TensorPlan& plan, const TensorRule& found) {
  for (const TensorRule& other : plan)
    if (other.split != found.split && matches_pattern(other.pattern, layer))
      refuse_layer(layer, cat("matches '", escape_controls(found.pattern), "' (", enum_text(found.split), ") and '",
                              escape_controls(other.pattern), "' (", enum_text(other.split),
                              "). Write patterns of which each layer matches one."));
}

void check_used(const TensorPlan& plan, const std::vector<bool>& used, const std::vector<OwnParameters>& layers) {
  std::vector<std::string> names;
  for (const OwnParameters& layer : layers) names.push_back(layer.layer);
  for (size_t i = 0; i < plan.size(); ++i)
    if (!used[i])
      throw ConfigError(cat("[strategies.mesh] a pattern of tensor_plan must match a layer with parameters; '",
                            escape_controls(plan[i].pattern), "' matches none. The layers are ", join_some(names, 10),
                            "."));
}

const Tensor& weight_of(const OwnParameters& layer, TensorSplit split) {
  const Tensor* weight = nullptr;
  for (const auto& [name, value] : layer.values) {
    if (name == "weight")
      weight = &value;
    else if (name != "bias")
      refuse_layer(layer.layer, cat("has the parameter '", escape_controls(name), "'; ", enum_text(split),
                                    " divides linear layers and embeddings, which have a weight and a bias."));
  }
  if (!weight || weight->dim() != 2)
    refuse_layer(layer.layer, cat(weight ? cat("has a weight of shape ", shape_text(weight->sizes())) : "has no weight",
                                  "; ", enum_text(split), " divides linear layers and embeddings."));
  return *weight;
}

// Throws if the ranks cannot divide the outputs.
std::vector<int64_t> parts_of(const OwnParameters& layer, const TensorRule& rule, int64_t size, int64_t ranks) {
  if (rule.split == TensorSplit::vocabulary) {
    if ((ranks - 1) * ((size + ranks - 1) / ranks) >= size)
      refuse_layer(layer.layer, cat("has a vocabulary of ", size, ", of which mesh.tensor: ", ranks,
                                    " leaves a rank without any. Lower it."));
    return {size};
  }
  std::vector<FusedPart> parts = rule.parts;
  if (parts.empty())
    parts.push_back({.outputs = size, .units = size, .unit = rule.split == TensorSplit::row ? "inputs" : "outputs"});
  std::vector<int64_t> sizes;
  int64_t sum = 0;
  for (const FusedPart& part : parts) {
    if (part.units < 1 || part.outputs % part.units != 0)
      refuse_layer(layer.layer, cat("has a part of ", part.outputs, " outputs in its rule, which its ", part.units, " ",
                                    part.unit, " do not divide."));
    if (part.units % ranks != 0)
      refuse_layer(layer.layer, cat("has ", part.units, " ", part.unit, ", which mesh.tensor: ", ranks,
                                    " does not divide. Set mesh.tensor to a divisor of ", part.units, "."));
    sizes.push_back(part.outputs);
    sum += part.outputs;
  }
  if (sum != size) refuse_layer(layer.layer, cat("has ", size, " outputs; the parts of its rule have ", sum, "."));
  return sizes;
}

// 1: the parts have different ones.
int64_t unit_of(const TensorRule& rule) {
  if (rule.parts.empty()) return 1;
  const int64_t unit = rule.parts.front().outputs / rule.parts.front().units;
  const bool are_equal =
      std::ranges::all_of(rule.parts, [&](const FusedPart& part) { return part.outputs / part.units == unit; });
  return are_equal ? unit : 1;
}

void check_kind(const LightningModule& module, const OwnParameters& layer, TensorSplit split) {
  if (split == TensorSplit::vocabulary) return;
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    if (item.key() == layer.layer && dynamic_cast<const torch::nn::EmbeddingImpl*>(item.value().get()))
      refuse_layer(layer.layer,
                   cat("is an embedding, which ", enum_text(split), " does not divide. Divide it by vocabulary."));
}

void divide_layer(const OwnParameters& layer, const TensorRule& rule, int64_t ranks,
                  std::vector<DividedParameter>& divided) {
  const Tensor& weight = weight_of(layer, rule.split);
  if (!rule.parts.empty() && rule.split != TensorSplit::column && rule.split != TensorSplit::gathered_column)
    refuse_layer(layer.layer, cat("has parts in its rule, which ", enum_text(rule.split),
                                  " does not use. Remove them, or divide it by column."));
  const int64_t dim = rule.split == TensorSplit::row ? 1 : 0;
  const std::vector<int64_t> parts = parts_of(layer, rule, weight.size(dim), ranks);
  for (const auto& [name, value] : layer.values) {
    const bool is_weight = name == "weight";
    // A bias is added once, to the sum over the ranks.
    if (!is_weight && dim == 1) continue;
    divided.push_back({.name = cat(layer.layer, ".", name),
                       .layer = layer.layer,
                       .value = value,
                       .split = rule.split,
                       .is_weight = is_weight,
                       .sizes = value.sizes().vec(),
                       .dim = dim,
                       .parts = parts,
                       .unit = unit_of(rule)});
  }
}

void add_norm(const OwnParameters& layer, std::vector<Tensor>& norms) {
  for (const auto& [name, value] : layer.values) {
    if (value.dim() != 1)
      refuse_layer(layer.layer, cat("has the parameter '", escape_controls(name), "' of shape ",
                                    shape_text(value.sizes()), "; sequence is for norms of the last dimension."));
    norms.push_back(value);
  }
}

// Layers that share a parameter divide it alike.
std::vector<DividedParameter> each_once(std::vector<DividedParameter> all, const std::vector<OwnParameters>& layers) {
  std::vector<DividedParameter> unique;
  std::unordered_map<const void*, size_t> places;
  std::set<std::string> divided;
  for (DividedParameter& each : all) {
    divided.insert(each.layer);
    const auto [place, is_new] = places.emplace(each.value.unsafeGetTensorImpl(), unique.size());
    if (is_new) {
      unique.push_back(std::move(each));
      continue;
    }
    const DividedParameter& first = unique[place->second];
    if (first.split != each.split || first.parts != each.parts)
      refuse_layer(each.layer,
                   cat("shares its weight with '", escape_controls(first.layer), "', which is divided by ",
                       enum_text(first.split), ", and it by ", enum_text(each.split), ". Use one of both."));
  }
  for (const OwnParameters& layer : layers)
    for (const auto& [name, value] : layer.values)
      if (const auto place = places.find(value.unsafeGetTensorImpl());
          place != places.end() && !divided.contains(layer.layer))
        refuse_layer(layer.layer,
                     cat("shares its ", escape_controls(name), " with '", escape_controls(unique[place->second].layer),
                         "', which is divided. Add both to the plan."));
  return unique;
}

}  // namespace

OwnRange own_range(int64_t size, int64_t rank, int64_t ranks) {
  const int64_t most = (size + ranks - 1) / ranks, begin = std::min(size, rank * most);
  return {.begin = begin, .count = std::min(most, size - begin)};
}

Tensor own_part(const DividedParameter& parameter, const Tensor& whole, int64_t rank, int64_t ranks) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> own;
  int64_t begin = 0;
  for (const int64_t size : parameter.parts) {
    const OwnRange range = own_range(size, rank, ranks);
    own.push_back(whole.detach().narrow(parameter.dim, begin + range.begin, range.count));
    begin += size;
  }
  return own.size() == 1 ? own.front().clone(at::MemoryFormat::Contiguous) : at::cat(own, parameter.dim);
}

DividedLayers plan_divided_layers(const LightningModule& module, const std::map<std::string, TensorSplit>& options,
                                  int64_t ranks) {
  TensorPlan chosen;
  for (const auto& [pattern, split] : options) chosen.push_back({.pattern = pattern, .split = split});
  const TensorPlan own = module.tensor_plan();
  if (chosen.empty() && own.empty())
    throw ConfigError(cat("[strategies.mesh] mesh.tensor: ", ranks,
                          " divides the layers that a plan names, and there are no rules: neither in tensor_plan of "
                          "the strategy nor in LightningModule::tensor_plan(). docs/mesh.md describes both."));
  const std::vector<OwnParameters> layers = layers_of(module);
  std::vector<bool> used_chosen(chosen.size()), used_own(own.size());
  DividedLayers divided;
  for (const OwnParameters& layer : layers) {
    const TensorRule* const of_module = rule_of(layer.layer, own, used_own);
    const TensorRule* rule = rule_of(layer.layer, chosen, used_chosen);
    if (rule) check_one_rule(layer.layer, chosen, *rule);
    // The module knows the parts of its layers.
    if (!rule || (of_module && of_module->split == rule->split)) rule = of_module;
    if (!rule || rule->split == TensorSplit::whole) continue;
    if (rule->split == TensorSplit::sequence) {
      add_norm(layer, divided.of_norms);
    } else {
      check_kind(module, layer, rule->split);
      divide_layer(layer, *rule, ranks, divided.parameters);
    }
  }
  check_used(chosen, used_chosen, layers);
  check_used(own, used_own, layers);
  if (divided.parameters.empty())
    throw ConfigError(cat("[strategies.mesh] the rules of tensor_plan divide no layer, so all ", ranks,
                          " ranks along mesh.tensor would compute the same. Name layers to divide, or set mesh.tensor: "
                          "1."));
  divided.parameters = each_once(std::move(divided.parameters), layers);
  return divided;
}

}  // namespace fulgur::detail
