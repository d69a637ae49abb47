#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/contracts/placed_module.h"
#include "fulgur/core/state/split_mix.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/matches_pattern.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/mesh.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "setup/setup_steps.h"

namespace fulgur::detail {
namespace {

using AdaptedLayers = std::map<std::string, std::shared_ptr<torch::nn::Module>>;

constexpr size_t kShownNames = 8;
constexpr uint64_t kAdapterSeed = 0x61646170746572;  // so that the run draws the numbers that it draws without adapters

ConfigError wrong_adapters(const std::string& what) { return ConfigError(cat("[trainer.adapters] ", what)); }

nn::LoraOptions lora_options(const AdapterRecord& record) {
  return {.rank = record.rank, .alpha = record.alpha, .dropout = record.dropout};
}

bool matches_one_of(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) { return matches_pattern(pattern, name); });
}

[[noreturn]] void pattern_without_match(const char* option, const std::string& pattern, const char* what,
                                        const std::vector<std::string>& names) {
  std::string plain = pattern;
  std::erase(plain, '*');
  const std::vector<std::string> near = nearest_names(plain, names);
  throw wrong_adapters(cat(option, " must match ", what, "; the pattern '", escape_controls(pattern),
                           "' matches none. ",
                           names.empty()   ? std::string("The module has none")
                           : !near.empty() ? cat("Similar names are ", join(near))
                                           : cat("The names are ", join_some(names, kShownNames)),
                           "."));
}

void check_patterns(const char* option, const std::vector<std::string>& patterns, const char* what,
                    const std::vector<std::string>& names) {
  for (const std::string& pattern : patterns)
    if (std::ranges::none_of(names, [&](const std::string& name) { return matches_pattern(pattern, name); }))
      pattern_without_match(option, pattern, what, names);
}

// Layers whose weight is that of another layer, too.
std::set<std::string> layers_with_tied_weights(const LightningModule& module) {
  constexpr std::string_view kWeight = ".weight";
  std::set<std::string> layers;
  for (const auto& [alias, name] : parameter_aliases(module))
    for (const std::string& one : {alias, name})
      if (one.ends_with(kWeight)) layers.insert(one.substr(0, one.size() - kWeight.size()));
  return layers;
}

// The linear layers that the options name, each once, under its first name. A pattern that matches other layers, too,
// leaves out those with a tied weight, which are added to `left_out`.
AdaptedLayers chosen_layers(const LightningModule& module, const Adapters& options, std::set<std::string>& left_out) {
  AdaptedLayers all, chosen;
  std::vector<std::string> names;
  std::set<const void*> seen;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (!nn::takes_lora(*item.value()) || !seen.insert(item.value().get()).second) continue;
    names.push_back(item.key());
    all.emplace(item.key(), item.value());
  }
  check_patterns("target", options.target, "a linear layer (fulgur::nn::Linear, torch::nn::Linear)", names);
  const std::set<std::string> tied = layers_with_tied_weights(module);
  for (const std::string& pattern : options.target) {
    std::vector<std::string> matched;
    std::ranges::copy_if(names, std::back_inserter(matched),
                         [&](const std::string& name) { return matches_pattern(pattern, name); });
    const bool only_tied = std::ranges::all_of(matched, [&](const std::string& name) { return tied.contains(name); });
    for (const std::string& name : matched) {
      if (only_tied || !tied.contains(name))
        chosen.emplace(name, all.at(name));
      else
        left_out.insert(name);
    }
  }
  return chosen;
}

// The adapter of one layer would change the other, too, once it is merged.
void refuse_tied_weights(const LightningModule& module, const AdaptedLayers& layers) {
  for (const auto& [alias, name] : parameter_aliases(module))
    for (const auto& [one, other] : {std::pair(alias, name), std::pair(name, alias)})
      if (one.ends_with(".weight") && layers.contains(one.substr(0, one.size() - std::string(".weight").size())))
        throw wrong_adapters(cat("a layer with an adapter must not share its weight; '", one, "' is also '", other,
                                 "', which an adapter cannot follow. Name patterns in target that leave it out."));
}

// What LibTorch's layers, whose forward is fixed, cannot do.
void check_foreign_layer(const RunState& run, const std::string& name) {
  const auto refuse = [&](const std::string& what) {
    throw wrong_adapters(cat("'", name, "' is a torch::nn::Linear, whose adapter does not work with ", what,
                             ". Create it as fulgur::nn::Linear, which takes the same options and weights, or leave it "
                             "out of target."));
  };
  if (run.components.adapters->dropout > 0) refuse("dropout");
  if (run.strategy->devices().size() > 1)
    refuse(cat("strategy ", run.strategy->name(), ", which computes on several devices in one process"));
  if (run.fn == TrainerFn::fit && !run.model->automatic_optimization()) refuse("manual optimization");
  // A step makes the weights of all such layers at once, and each rank has those of its stages.
  if (const auto* const mesh = dynamic_cast<const MeshStrategy*>(run.strategy.get()); mesh && mesh->has_pipeline())
    refuse("a pipeline");
}

// Adds adapters to the layers of `module` that have these names.
void add_to_copy(torch::nn::Module& module, const std::set<std::string>& names, const nn::LoraOptions& options) {
  for (const auto& item : module.named_modules(""))
    if (names.contains(item.key())) nn::add_lora(*item.value(), options);
}

// Copies of a placed submodule get the same adapters; their values come from it.
void prepare_placed_copies(const RunState& run) {
  for (const auto& placed : ComponentAccess::placed_modules(*run.model)) {
    const std::string prefix = placed->name() + ".";
    std::set<std::string> names;
    for (const std::string& layer : run.adapters->layers) {
      if (layer == placed->name()) names.insert("");
      if (layer.starts_with(prefix)) names.insert(layer.substr(prefix.size()));
    }
    placed->set_up_copies(
        [names, options = lora_options(*run.adapters)](torch::nn::Module& copy) { add_to_copy(copy, names, options); });
  }
}

void attach_adapters(RunState& run) {
  if (run.adapters) return;
  const Adapters& options = *run.components.adapters;
  std::set<std::string> left_out;
  const AdaptedLayers layers = chosen_layers(*run.model, options, left_out);
  refuse_tied_weights(*run.model, layers);
  for (const auto& item : run.model->named_modules("", /*include_self=*/false))
    if (nn::has_lora(*item.value()) && !layers.contains(item.key()))
      throw wrong_adapters(cat("target must match all layers that have an adapter from an earlier run; '", item.key(),
                               "' has one. Name it, or take a new module."));
  AdapterRecord record;
  record.rank = options.rank;
  record.alpha = options.alpha;
  record.dropout = options.dropout;
  std::optional<at::Generator> generator;
  if (run.seed) generator = at::make_generator<at::CPUGeneratorImpl>(mix_bits(*run.seed ^ kAdapterSeed));
  for (const auto& [name, layer] : layers) {
    const auto foreign = std::dynamic_pointer_cast<torch::nn::LinearImpl>(layer);
    if (foreign) check_foreign_layer(run, name);
    nn::add_lora(*layer, lora_options(record), generator);
    if (foreign) run.lora_layers.push_back({.layer = foreign, .scale = lora_options(record).scale()});
    record.layers.push_back(name);
  }
  run.adapters = std::move(record);
  prepare_placed_copies(run);
  if (!left_out.empty() && !run.components.is_trial)
    run.print(cat("adapters: none for ", join_some({left_out.begin(), left_out.end()}, kShownNames),
                  ", whose weight is that of another layer, too"));
}

std::set<std::string> adapter_tensors(const AdapterRecord& record) {
  std::set<std::string> names;
  for (const std::string& layer : record.layers) names.insert({layer + ".lora_A", layer + ".lora_B"});
  return names;
}

// Running statistics change in training although no optimizer has them, so `train` decides about them, too.
std::vector<std::string> trained_statistics(const RunState& run, const std::vector<std::string>& train) {
  std::vector<std::string> names, unmatched;
  for (const auto& item : run.model->named_modules("", /*include_self=*/false)) {
    const auto buffers = item.value()->named_buffers(/*recurse=*/false);
    const Tensor* const mean = buffers.find("running_mean");
    if (!mean || !mean->defined()) continue;
    const std::string name = item.key() + ".running_mean";
    if (!matches_one_of(train, name)) {
      // All of them are named in one error.
      if (run.fn == TrainerFn::fit && item.value()->is_training()) unmatched.push_back(item.key());
      continue;
    }
    for (const auto& buffer : buffers)
      if (buffer.value().defined()) names.push_back(cat(item.key(), ".", buffer.key()));
  }
  if (!unmatched.empty()) {
    std::vector<std::string> patterns;
    for (const std::string& layer : unmatched) patterns.push_back(cat("\"", layer, ".*\""));
    throw wrong_adapters(cat("the running statistics of ", counted(static_cast<int64_t>(unmatched.size()), "layer"),
                             " change in training, so that adapters alone would not be the result; no pattern of "
                             "train matches them. Add ",
                             join_some(std::move(patterns), kShownNames),
                             unmatched.size() > 1 ? " to train (or a pattern for all of them)" : " to train",
                             ", or put the ", unmatched.size() > 1 ? "layers" : "layer",
                             " into eval mode in the module."));
  }
  return names;
}

// Freezes everything but the adapters and what `train` names, of which it returns the names.
std::vector<std::string> freeze_others(RunState& run) {
  const std::vector<std::string>& train = run.components.adapters->train;
  const std::set<std::string> of_adapters = adapter_tensors(*run.adapters);
  std::vector<std::string> trained = trained_statistics(run, train), trainable = trained;
  const auto parameters = unique_parameters(*run.model);
  for (const auto& [name, value] : parameters)
    if (value.requires_grad() && !of_adapters.contains(name)) trainable.push_back(name);
  check_patterns("train", train, "a parameter that the module does not freeze, or running statistics", trainable);
  for (const auto& [name, value] : parameters) {
    if (of_adapters.contains(name)) {
      value.set_requires_grad(true);
    } else if (!matches_one_of(train, name)) {
      value.set_requires_grad(false);
    } else if (value.requires_grad()) {
      for (const std::string& layer : run.adapters->layers)
        if (name == layer + ".weight")
          throw wrong_adapters(cat("train must not match the weight of a layer that has an adapter; got '", name,
                                   "'. Leave the layer out of target, or its weight out of train."));
      trained.push_back(name);
    }
  }
  return trained;
}

void check_same_form(const std::optional<int64_t>& rank, const std::optional<double>& alpha, const Adapters& options,
                     const std::string& of) {
  const auto refuse = [&](const char* what, const auto& there, const auto& here) {
    throw CheckpointError(cat("[trainer.adapters] the adapters of ", of, " have another ", what, ": ", there,
                              ", and adapters.", what, " of the config is ", here, ". Set adapters.", what, " to ",
                              there, "."));
  };
  if (rank && *rank != options.rank) refuse("rank", *rank, options.rank);
  if (alpha && *alpha != options.alpha) refuse("alpha", *alpha, options.alpha);
}

// A checkpoint with other adapters than the config's cannot give them their values, and its own would be lost.
void check_same_layers(const RunState& run, const AdapterRecord& saved) {
  const std::set<std::string> there(saved.layers.begin(), saved.layers.end());
  const std::set<std::string> here(run.adapters->layers.begin(), run.adapters->layers.end());
  std::vector<std::string> only_there, only_here;
  std::ranges::set_difference(there, here, std::back_inserter(only_there));
  std::ranges::set_difference(here, there, std::back_inserter(only_here));
  if (!run.load.strict) only_here.clear();  // they begin as new ones
  if (only_there.empty() && only_here.empty()) return;
  std::string what = "[trainer.adapters] adapters.target must name the layers whose adapters the checkpoint has";
  if (!only_there.empty()) what += cat("; it leaves out ", escape_controls(join_some(only_there, kShownNames)));
  if (!only_here.empty())
    what += cat("; the checkpoint has none for ", escape_controls(join_some(only_here, kShownNames)));
  throw CheckpointError(
      cat(what, run.fn == TrainerFn::fit
                    ? ". To train other adapters on top of these, merge these into the weights first (trainer export "
                      "CHECKPOINT --output merged.safetensors), and begin the run with pretrained.path: "
                      "merged.safetensors instead of the checkpoint."
                    : ". Name the same layers, or leave adapters out of the config: those of the checkpoint are then "
                      "merged into its weights."));
}

// Reads the values that `adapters.path` names.
void read_values(RunState& run) {
  const std::filesystem::path& path = *run.components.adapters->path;
  const std::string shown = escape_controls(path.string());
  const AdaptersFile file = read_adapters(path);
  check_same_form(file.rank, file.alpha, *run.components.adapters, shown);
  std::set<std::string> wanted = adapter_tensors(*run.adapters);
  wanted.insert(run.adapters->trained.begin(), run.adapters->trained.end());
  std::vector<std::string> differences;
  std::set<std::string> given;
  for (const auto& [name, tensor] : file.tensors) {
    given.insert(name);
    if (!wanted.contains(name)) differences.push_back(cat("unexpected: ", escape_controls(name)));
  }
  for (const std::string& name : wanted)
    if (!given.contains(name)) differences.push_back(cat("missing: ", name));
  if (differences.empty()) {
    const LoadReport report = load_module_state(
        *run.model, file.tensors, {.strict = false, .key_prefixes = {}, .convert_formats = true, .ignore = {}});
    for (const std::string& name : report.mismatched) differences.push_back(cat("of another shape: ", name));
  }
  if (!differences.empty())
    throw CheckpointError(cat("[trainer.adapters] ", shown, " must have the tensors that this run trains; ",
                              differences.size(), " differ:\n  ", join_some(differences, kShownNames, "\n  "),
                              "\nUse the target and train with which they were trained."));
  if (!run.components.is_trial)
    run.print(cat("adapters: ", counted(static_cast<int64_t>(wanted.size()), "tensor"), " from ", shown));
}

void describe_adapters(const RunState& run) {
  if (run.components.is_trial) return;
  const AdapterRecord& record = *run.adapters;
  std::string line = cat("adapters: ", counted(static_cast<int64_t>(record.layers.size()), "layer"), ", rank ",
                         record.rank, ", alpha ", record.alpha);
  if (run.fn == TrainerFn::fit) {
    int64_t all = 0, trained = 0;
    for (const auto& [name, value] : unique_parameters(*run.model)) {
      all += value.numel();
      if (value.requires_grad()) trained += value.numel();
    }
    line += cat("; ", format_count(trained), " of ", format_count(all), " parameters are trained (",
                format_fixed(100 * static_cast<double>(trained) / static_cast<double>(std::max<int64_t>(all, 1)), 2),
                " %)");
  }
  run.print(line);
}

// The averages of WeightAveraging replace the weights of an evaluation, so they must be those of the same module.
void merge_averages(StateTree& state, const AdapterRecord& record) {
  constexpr std::string_view kCallback = "WeightAveraging", kAverage = "average";
  if (!state.contains(checkpoint_keys::kCallbacks)) return;
  StateTree& callbacks = state[checkpoint_keys::kCallbacks];
  if (!callbacks.contains(kCallback) || !callbacks.at(kCallback).contains(kAverage)) return;
  StateTree& average = callbacks[kCallback][kAverage];
  NamedTensors tensors;
  for (const auto& [name, value] : average.as_map()) tensors.emplace_back(name, value.tensor());
  if (tensors.empty()) return;
  merge_adapters(tensors, record);
  StateTree::Map merged;
  for (auto& [name, tensor] : tensors) merged.emplace(name, std::move(tensor));
  average = std::move(merged);
}

// A module may come from another run: layers of LibTorch would compute without their adapters, and checkpoints would
// not name them.
void refuse_forgotten_adapters(const RunState& run) {
  for (const auto& item : run.model->named_modules("", /*include_self=*/false))
    if (nn::has_lora(*item.value()))
      throw wrong_adapters(cat("a module with adapters needs them in each of its runs; '", item.key(),
                               "' has one, and the run has none. Set TrainerComponents::adapters, or load a checkpoint "
                               "of the module into a new one, whose weights then include them."));
}

}  // namespace

void adapt_checkpoint(RunState& run, CheckpointContent& content) {
  const std::optional<AdapterRecord> saved = adapters_of(content.state);
  const std::optional<Adapters>& options = run.components.adapters;
  const bool resumes = run.fn == TrainerFn::fit && run.load.loads_optimizer();
  if (saved.has_value() != options.has_value() && resumes)
    throw CheckpointError(
        cat("[trainer.adapters] a fit must resume with the same adapters; the checkpoint has ",
            saved ? cat("those of ", counted(static_cast<int64_t>(saved->layers.size()), "layer")) : "none",
            ", and the config has ", options ? "some" : "none",
            ". Use the config of its run, or begin a new run with its weights: --load.weights_only true."));
  if (!saved) return;
  if (options) {
    check_same_form(saved->rank, saved->alpha, *options, "the checkpoint");
    attach_adapters(run);
    return check_same_layers(run, *saved);
  }
  const auto modules = run.model->named_modules("", /*include_self=*/false);
  if (std::ranges::any_of(modules, [](const auto& item) { return nn::has_lora(*item.value()); })) return;
  merge_adapters(content.module, *saved);
  merge_averages(content.state, *saved);
  if (!run.components.is_trial)
    run.print(cat("adapters: those of ", counted(static_cast<int64_t>(saved->layers.size()), "layer"),
                  " of the checkpoint are merged into its weights"));
}

void add_adapters(RunState& run) {
  if (!run.components.adapters) return refuse_forgotten_adapters(run);
  const bool loaded = run.adapters.has_value();
  attach_adapters(run);
  run.adapters->trained = freeze_others(run);
  if (run.components.adapters->path && !loaded && !run.keeps_weights) read_values(run);
  describe_adapters(run);
}

void add_adapters_to_copy(const RunState& run, LightningModule& copy) {
  if (!run.adapters) return;
  add_to_copy(copy, {run.adapters->layers.begin(), run.adapters->layers.end()}, lora_options(*run.adapters));
}

}  // namespace fulgur::detail
