#include "fulgur/strategies/stage_plan.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr const char* kModuleAdvice = " LightningModule::stages() is described in docs/mesh.md.";

bool is_part_of(std::string_view name, std::string_view module) {
  return name.starts_with(module) && (name.size() == module.size() || name[module.size()] == '.');
}

std::vector<std::string> names_of_layers(const LayerChain& chain) {
  std::vector<std::string> names;
  for (const auto& layer : chain.layers) names.push_back(layer.name);
  return names;
}

void check_chain(const LayerChain& chain, int64_t stages) {
  if (chain.layers.empty())
    throw ConfigError(
        cat("[strategies.mesh] a pipeline divides the layers that the module's stages() returns, and it returns none. "
            "Override it, or set mesh.pipeline to 1.",
            kModuleAdvice));
  if (!chain.input || !chain.loss)
    throw ConfigError(cat("[strategies.mesh] the module's stages() must set input and loss; it has not set ",
                          chain.input  ? "loss"
                          : chain.loss ? "input"
                                       : "either",
                          ".", kModuleAdvice));
  for (const auto& layer : chain.layers)
    if (!layer.forward || layer.name.empty())
      throw ConfigError(cat("[strategies.mesh] each layer of the module's stages() needs a name and a forward; '",
                            escape_controls(layer.name), "' has no ", layer.forward ? "name" : "forward", ".",
                            kModuleAdvice));
  std::vector<std::string> names = names_of_layers(chain);
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
    throw ConfigError(cat("[strategies.mesh] two layers of the module's stages() are named '", escape_controls(*twice),
                          "'; their names must differ."));
  if (static_cast<int64_t>(chain.layers.size()) < stages)
    throw ConfigError(cat("[strategies.mesh] ", stages, " stages need at least as many layers; the module's stages() ",
                          "returns ", counted(static_cast<int64_t>(chain.layers.size()), "layer"),
                          ". Lower mesh.pipeline or stages_per_rank."));
}

std::vector<size_t> named_cuts(const LayerChain& chain, const std::vector<std::string>& cuts, int64_t stages) {
  const std::vector<std::string> names = names_of_layers(chain);
  if (static_cast<int64_t>(cuts.size()) != stages - 1)
    throw ConfigError(cat("[strategies.mesh] ", stages, " stages need ", counted(stages - 1, "cut"), "; cuts names ",
                          static_cast<int64_t>(cuts.size()),
                          ": the layer with which each stage after the first begins."));
  std::vector<size_t> begins;
  for (const std::string& cut : cuts) {
    const auto found = std::ranges::find(names, cut);
    if (found == names.end())
      throw ConfigError(cat("[strategies.mesh] cuts: the module has no layer '", escape_controls(cut),
                            "'. Its layers are: ", join(names), "."));
    const auto index = static_cast<size_t>(found - names.begin());
    if (index <= (begins.empty() ? 0 : begins.back()))
      throw ConfigError(
          cat("[strategies.mesh] cuts: '", escape_controls(cut),
              "' leaves a stage without a layer. Name layers after the first one, in their order: ", join(names), "."));
    begins.push_back(index);
  }
  return begins;
}

// The cuts with the smallest sum of squares of the stages' sizes.
std::vector<size_t> balanced_cuts(const std::vector<double>& sizes, size_t stages) {
  const size_t layers = sizes.size();
  std::vector<double> until(layers + 1, 0);
  for (size_t i = 0; i < layers; ++i) until[i + 1] = until[i] + sizes[i];
  constexpr double kNone = std::numeric_limits<double>::infinity();
  // cost[s][i]: of the first i layers in s stages; the last of them begins with layer begin[s][i].
  std::vector<std::vector<double>> cost(stages + 1, std::vector<double>(layers + 1, kNone));
  std::vector<std::vector<size_t>> begin(stages + 1, std::vector<size_t>(layers + 1, 0));
  cost[0][0] = 0;
  for (size_t s = 1; s <= stages; ++s)
    for (size_t i = s; i <= layers; ++i)
      for (size_t j = s - 1; j < i; ++j) {
        const double size = until[i] - until[j], total = cost[s - 1][j] + size * size;
        if (total < cost[s][i]) {
          cost[s][i] = total;
          begin[s][i] = j;
        }
      }
  std::vector<size_t> cuts;
  for (size_t s = stages, i = layers; s > 1; --s) cuts.push_back(i = begin[s][i]);
  std::ranges::reverse(cuts);
  return cuts;
}

// The tensors of the module under all their names, and those that layers read by layer.
struct NamedTensors {
  std::vector<StageTensor> tensors;
  std::unordered_map<const void*, size_t> places;
  std::vector<std::pair<std::string, size_t>> names;

  void add(const std::string& name, const Tensor& value, bool is_parameter) {
    if (!value.defined()) return;
    const auto [place, is_new] = places.emplace(value.unsafeGetTensorImpl(), tensors.size());
    if (is_new) tensors.push_back({.name = name, .value = value, .is_parameter = is_parameter});
    names.emplace_back(name, place->second);
  }
};

NamedTensors tensors_of_module(const LightningModule& module) {
  NamedTensors all;
  for (const auto& item : module.named_parameters()) all.add(item.key(), item.value(), true);
  for (const auto& item : module.named_buffers()) all.add(item.key(), item.value(), false);
  return all;
}

std::unordered_set<size_t> tensors_of_layer(const NamedTensors& all, const LightningModule& module,
                                            const LayerChain::Layer& layer) {
  std::unordered_set<size_t> found;
  for (const std::string& wanted : layer.modules) {
    const size_t before = found.size();
    for (const auto& [name, index] : all.names)
      if (is_part_of(name, wanted)) found.insert(index);
    if (found.size() > before) continue;
    std::vector<std::string> names;
    for (const auto& item : module.named_modules("", /*include_self=*/false)) names.push_back(item.key());
    if (std::ranges::find(names, wanted) != names.end()) continue;  // a module without tensors
    for (const auto& [name, index] : all.names) names.push_back(name);
    const std::string hint = did_you_mean(wanted, names);
    throw ConfigError(cat("[strategies.mesh] the layer '", escape_controls(layer.name),
                          "' of the module's stages() names '", escape_controls(wanted),
                          "', which is no module, parameter or buffer of it", hint.empty() ? "." : hint));
  }
  return found;
}

}  // namespace

StagePlan plan_stages(const LightningModule& module, const LayerChain& chain,
                      const std::optional<std::vector<std::string>>& cuts, const PipelineShape& shape) {
  check_chain(chain, shape.stages());
  NamedTensors all = tensors_of_module(module);
  std::vector<std::unordered_set<size_t>> of_layers;
  std::vector<double> sizes;
  for (const auto& layer : chain.layers) {
    of_layers.push_back(tensors_of_layer(all, module, layer));
    double size = 0;
    for (const size_t index : of_layers.back())
      if (all.tensors[index].is_parameter) size += static_cast<double>(all.tensors[index].value.numel());
    sizes.push_back(size);
  }
  std::vector<size_t> begins =
      cuts ? named_cuts(chain, *cuts, shape.stages()) : balanced_cuts(sizes, static_cast<size_t>(shape.stages()));
  StagePlan plan;
  begins.insert(begins.begin(), 0);
  begins.push_back(chain.layers.size());
  for (size_t stage = 0; stage + 1 < begins.size(); ++stage) {
    plan.stages.emplace_back(begins[stage], begins[stage + 1]);
    std::unordered_set<size_t> of_stage;
    for (size_t layer = begins[stage]; layer < begins[stage + 1]; ++layer)
      of_stage.insert(of_layers[layer].begin(), of_layers[layer].end());
    const auto number = static_cast<int64_t>(stage), rank = number % shape.ranks;
    for (const size_t index : of_stage) {
      StageTensor& tensor = all.tensors[index];
      tensor.stages.push_back(number);
      if (std::ranges::find(tensor.ranks, rank) == tensor.ranks.end()) tensor.ranks.push_back(rank);
    }
  }
  std::vector<std::string> unnamed;
  for (StageTensor& tensor : all.tensors) {
    if (tensor.ranks.empty() && tensor.is_parameter) unnamed.push_back(tensor.name);
    // A buffer that no layer reads changes on no rank, or on all alike.
    if (tensor.ranks.empty()) tensor.ranks.push_back(0);
  }
  if (!unnamed.empty())
    throw ConfigError(cat("[strategies.mesh] no layer of the module's stages() names these parameters: ",
                          join_some(unnamed, 10), ". Add their modules to the layers that read them.", kModuleAdvice));
  plan.tensors = std::move(all.tensors);
  return plan;
}

StagePlan plan_one_stage(const LightningModule& module) {
  StagePlan plan{.stages = {}, .tensors = tensors_of_module(module).tensors};
  for (StageTensor& tensor : plan.tensors) tensor.ranks = {0};
  return plan;
}

}  // namespace fulgur::detail
