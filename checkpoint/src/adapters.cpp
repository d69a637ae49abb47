#include "fulgur/checkpoint/adapters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "fulgur/checkpoint/new_file.h"
#include "fulgur/checkpoint/weights_file.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/system/durable_file.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/system/system_calls.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/hub_name.h"
#include "fulgur/core/text/text.h"
#include "io/folder_names.h"

namespace fulgur {
namespace fs = std::filesystem;
namespace {

constexpr const char* kAdapterWeights = "adapter_model.safetensors";
constexpr const char* kAdapterConfig = "adapter_config.json";
constexpr std::string_view kPeftPrefix = "base_model.model.";
constexpr std::string_view kWeightEnd = ".weight";
constexpr std::string_view kBaseLayer = ".base_layer.";

StateTree list_of(const std::vector<std::string>& names) {
  StateTree::List list;
  for (const std::string& name : names) list.emplace_back(name);
  return list;
}

std::vector<std::string> names_in(const StateTree& list) {
  std::vector<std::string> names;
  for (const StateTree& name : list.as_list()) names.push_back(name.as_string());
  return names;
}

Tensor& adapter_tensor(NamedTensors& tensors, const std::string& name) {
  const auto found = std::ranges::find_if(tensors, [&](const auto& item) { return item.first == name; });
  if (found == tensors.end())
    throw CheckpointError(cat("[checkpoint.adapters] a checkpoint with adapters must have '", escape_controls(name),
                              "'; it is missing. The file is damaged, or of another program."));
  return found->second;
}

// `X.lora_A` of a module is `X.lora_A.weight` in PEFT.
bool is_adapter_part(std::string_view name) { return name.ends_with(".lora_A") || name.ends_with(".lora_B"); }

// The module that has the tensor, and the tensor's name in it.
std::pair<std::string, std::string> split_name(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::pair(std::string(), name)
                                  : std::pair(name.substr(0, dot), name.substr(dot + 1));
}

// PEFT puts an adapted layer into another one, as its `base_layer`.
std::string peft_name(const std::string& name, const std::set<std::string>& layers) {
  if (is_adapter_part(name)) return cat(kPeftPrefix, name, kWeightEnd);
  const auto [module, tensor] = split_name(name);
  return layers.contains(module) ? cat(kPeftPrefix, module, kBaseLayer, tensor) : cat(kPeftPrefix, name);
}

std::string module_name(std::string_view name) {
  if (name.starts_with(kPeftPrefix)) name.remove_prefix(kPeftPrefix.size());
  const std::string_view start = name.substr(0, name.size() - std::min(name.size(), kWeightEnd.size()));
  return std::string(name.ends_with(kWeightEnd) && is_adapter_part(start) ? start : name);
}

// The names in the module, for those in a file of PEFT.
NamedTensors as_in_module(NamedTensors tensors) {
  std::set<std::string> layers;
  for (auto& [name, tensor] : tensors) {
    name = module_name(name);
    if (is_adapter_part(name)) layers.insert(split_name(name).first);
  }
  // With `bias: all`, PEFT repeats the biases of modules that it saves as a whole.
  std::erase_if(tensors, [](const auto& item) {
    return item.first.find(".original_module.") != std::string::npos ||
           item.first.find(".modules_to_save.") != std::string::npos;
  });
  for (auto& [name, tensor] : tensors)
    if (const size_t place = name.rfind(kBaseLayer);
        place != std::string::npos && layers.contains(name.substr(0, place)))
      name.erase(place, kBaseLayer.size() - 1);
  return tensors;
}

bool is_set(const nlohmann::json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return false;
  if (found->is_boolean()) return found->get<bool>();
  return !found->empty();
}

std::string shown_json(const nlohmann::json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

// PiSSA, OLoRA, CorDA and LoftQ take the first values of the adapters out of the weights.
bool changes_base_weights(const nlohmann::json& start) {
  if (!start.is_string()) return false;
  const auto known = {"gaussian", "eva", "orthogonal"};
  return std::ranges::none_of(known, [&](const char* name) { return start == name; });
}

void read_adapter_config(const fs::path& path, AdaptersFile& file) {
  const auto text = read_regular_file(path);
  if (!text) return;
  const auto refuse = [&](const std::string& what) {
    throw CheckpointError(cat("[checkpoint.read_adapters] ", escape_controls(path.string()), " ", what));
  };
  const auto config = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return refuse("must be a JSON object, as PEFT writes it; it is damaged.");
  if (const auto type = config.find("peft_type"); type != config.end() && *type != "LORA")
    refuse(cat("must have the peft_type \"LORA\"; it is ", escape_controls(shown_json(*type)),
               ". Merge the adapters into the weights in Python (merge_and_unload)."));
  for (const char* key :
       {"use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "use_qalora", "use_bdlora", "layer_replication",
        "alora_invocation_tokens", "arrow_config", "kasa_config", "monteclora_config"})
    if (is_set(config, key))
      refuse(cat("describes adapters that are not computed here: ", key,
                 " must not be set. Merge them into the weights in Python (merge_and_unload)."));
  if (const auto start = config.find("init_lora_weights"); start != config.end() && changes_base_weights(*start))
    refuse(cat("describes adapters of other weights than those of the base model, which init_lora_weights: ",
               escape_controls(shown_json(*start)),
               " changes. Merge them into the weights in Python (merge_and_unload), or convert them "
               "(path_initial_model_for_weight_conversion of save_pretrained)."));
  if (!config.contains("r") || !config["r"].is_number_integer() || !config.contains("lora_alpha") ||
      !config["lora_alpha"].is_number())
    refuse("must name the numbers r and lora_alpha of adapters of the type LORA.");
  file.rank = config["r"].get<int64_t>();
  file.alpha = config["lora_alpha"].get<double>();
}

// The modules of which all tensors were trained: PEFT keeps a copy of each, `modules_to_save`. It finds them by the
// ends of their names, so that no other module may have the same end.
std::vector<std::string> whole_modules(const NamedTensors& tensors, const AdapterRecord& record) {
  const std::set<std::string> trained(record.trained.begin(), record.trained.end());
  std::set<std::string> modules, candidates;
  for (const auto& [name, tensor] : tensors)
    for (std::string module = split_name(name).first; !module.empty(); module = split_name(module).first)
      modules.insert(module);
  for (const std::string& name : record.trained) candidates.insert(split_name(name).first);
  std::vector<std::string> whole;
  for (const std::string& module : candidates) {
    const std::string start = module + ".";
    const auto is_inside = [&](const std::string& other) { return start.starts_with(other + "."); };
    if (module.empty() || std::ranges::any_of(whole, is_inside)) continue;
    if (std::ranges::all_of(
            tensors,
            [&](const auto& item) { return !item.first.starts_with(start) || trained.contains(item.first); }) &&
        std::ranges::none_of(modules,
                             [&](const std::string& other) { return other != module && other.ends_with(module); }))
      whole.push_back(module);
  }
  return whole;
}

// Which biases PEFT saves when it has trained the adapters further: those that were trained here are among them.
const char* trained_biases(const AdapterRecord& record, const std::vector<std::string>& whole) {
  const char* biases = "none";
  for (const std::string& name : record.trained) {
    const auto [module, tensor] = split_name(name);
    const auto has = [&](const std::string& other) { return name.starts_with(other + "."); };
    if (tensor != "bias" || std::ranges::any_of(whole, has)) continue;
    if (std::ranges::find(record.layers, module) == record.layers.end()) return "all";
    biases = "lora_only";
  }
  return biases;
}

std::string config_text(const AdapterRecord& record, const NamedTensors& tensors) {
  const std::vector<std::string> whole = whole_modules(tensors, record);
  nlohmann::ordered_json config{{"peft_type", "LORA"},
                                {"r", record.rank},
                                {"lora_alpha", record.alpha},
                                {"lora_dropout", record.dropout},
                                {"target_modules", record.layers},
                                {"modules_to_save", nullptr},
                                {"bias", trained_biases(record, whole)},
                                {"fan_in_fan_out", false},
                                {"task_type", nullptr},
                                {"base_model_name_or_path", nullptr},
                                {"inference_mode", true}};
  if (!whole.empty()) config["modules_to_save"] = whole;
  return config.dump(2) + "\n";
}

void refuse_existing_adapters(const fs::path& folder) {
  std::error_code error;
  for (const char* name : {kAdapterConfig, kAdapterWeights})
    if (fs::exists(folder / name, error))
      throw CheckpointError(cat("[checkpoint.write_adapters] ", escape_controls((folder / name).string()),
                                " exists already. Name another folder, or replace it with --force."));
}

// Moves complete files into a folder that exists. Without the removal, one of two renames would leave the new config
// with the old weights.
void move_adapters(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (fs::remove(to / kAdapterWeights, error)) detail::sync_folder(to);
  if (error)
    throw CheckpointError(cat("[checkpoint.write_adapters] ", escape_controls((to / kAdapterWeights).string()),
                              " could not be replaced: ", error.message(), "."));
  detail::rename_or_throw(from / kAdapterConfig, to / kAdapterConfig);
  detail::rename_or_throw(from / kAdapterWeights, to / kAdapterWeights);
  fs::remove(from, error);
  detail::sync_folder(to);
}

}  // namespace

StateTree AdapterRecord::state() const {
  return StateTree::map({{"rank", rank},
                         {"alpha", alpha},
                         {"dropout", dropout},
                         {"layers", list_of(layers)},
                         {"trained", list_of(trained)}});
}

std::optional<AdapterRecord> adapters_of(const StateTree& checkpoint_state) {
  if (!checkpoint_state.is_map() || !checkpoint_state.contains(kAdaptersKey)) return std::nullopt;
  const StateTree& state = checkpoint_state.at(kAdaptersKey);
  if (state.is_null()) return std::nullopt;
  AdapterRecord record;
  record.rank = state.at("rank").as_int();
  record.alpha = state.at("alpha").as_double();
  record.dropout = state.at("dropout").as_double();
  record.layers = names_in(state.at("layers"));
  record.trained = names_in(state.at("trained"));
  if (record.rank < 1)
    throw CheckpointError(
        cat("[checkpoint.adapters] the rank of adapters must be at least 1; the checkpoint has ", record.rank, "."));
  return record;
}

void merge_adapters(NamedTensors& tensors, const AdapterRecord& record) {
  const at::NoGradGuard no_grad;
  const double scale = record.alpha / static_cast<double>(record.rank);
  std::set<std::string> parts;
  for (const std::string& layer : record.layers) {
    const std::string name_a = layer + ".lora_A", name_b = layer + ".lora_B";
    const Tensor a = read_now(adapter_tensor(tensors, name_a)), b = read_now(adapter_tensor(tensors, name_b));
    Tensor& weight = adapter_tensor(tensors, layer + ".weight");
    weight = read_now(weight);
    const auto fits = [&] {
      return a.dim() == 2 && b.dim() == 2 && weight.dim() == 2 && a.size(0) == b.size(1) &&
             a.size(1) == weight.size(1) && b.size(0) == weight.size(0);
    };
    if (!fits())
      throw CheckpointError(cat("[checkpoint.adapters] the adapter of ", escape_controls(layer),
                                " must fit its weight ", shape_text(weight.sizes()), "; got ", shape_text(a.sizes()),
                                " and ", shape_text(b.sizes()), ". The file is damaged."));
    const at::ScalarType wide = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    weight = at::add(weight.to(wide), at::mm(b.to(wide), a.to(wide)), scale).to(weight.scalar_type());
    parts.insert({name_a, name_b});
  }
  std::erase_if(tensors, [&](const auto& item) { return parts.contains(item.first); });
}

AdaptersFile read_adapters(const fs::path& path) {
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  if (!fs::exists(path, error))
    throw CheckpointError(cat("[checkpoint.read_adapters] the path of adapters must exist; ",
                              escape_controls(path.string()), " does not.", detail::hub_name_hint(path)));
  if (is_folder && !fs::exists(path / kAdapterWeights, error)) {
    const bool has_weights = fs::exists(path / "model.safetensors", error) || fs::exists(path / "config.json", error);
    throw CheckpointError(cat("[checkpoint.read_adapters] a folder of adapters must have ", kAdapterWeights, "; ",
                              escape_controls(path.string()), " has none. ",
                              has_weights
                                  ? "It has a whole model: name it in pretrained.path, and leave out the path of "
                                    "adapters."
                                  : "Name a folder of trainer export --only_adapters or of PEFT."));
  }
  AdaptersFile file;
  WeightsFile weights = read_weights_file(is_folder ? path / kAdapterWeights : path);
  file.tensors = as_in_module(std::move(weights.tensors));
  read_adapter_config((is_folder ? path : path.parent_path()) / kAdapterConfig, file);
  return file;
}

void write_adapters(const fs::path& folder, const NamedTensors& tensors, const AdapterRecord& record, bool replace) {
  const std::set<std::string> layers(record.layers.begin(), record.layers.end());
  std::set<std::string> wanted(record.trained.begin(), record.trained.end());
  for (const std::string& layer : record.layers) wanted.insert({layer + ".lora_A", layer + ".lora_B"});
  WeightsFile weights;
  weights.format = WeightsFormat::safetensors;
  for (const auto& [name, tensor] : tensors)
    if (wanted.contains(name)) weights.tensors.emplace_back(peft_name(name, layers), tensor);
  if (weights.tensors.size() != wanted.size())
    throw CheckpointError(cat("[checkpoint.adapters] ", wanted.size(),
                              " tensors were trained, of which the checkpoint "
                              "has ",
                              weights.tensors.size(), ". The file is damaged."));
  if (!replace) refuse_existing_adapters(folder);
  const fs::path target = folder.filename().empty() ? folder.parent_path() : folder;
  std::error_code error;
  const bool exists = fs::exists(target, error);
  const fs::path parent = detail::folder_of(target);
  if (!exists) detail::make_folders(parent);
  // In a folder that exists, so that both are on one file system.
  const fs::path hidden = detail::unused_sibling(exists ? target / kAdapterWeights : target);
  if (detail::system_calls().mkdir(hidden.c_str(), 0755) != 0)
    detail::throw_errno("creating the folder", hidden, errno);
  try {
    detail::write_durably(hidden / kAdapterConfig, config_text(record, tensors));
    write_weights_file(hidden / kAdapterWeights, weights);
    if (exists) return move_adapters(hidden, target);
    detail::rename_or_throw(hidden, target);
  } catch (...) {
    fs::remove_all(hidden, error);
    throw;
  }
  detail::sync_folder(parent);
}

}  // namespace fulgur
