#include "fulgur/checkpoint/adapters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "fulgur/checkpoint/new_file.h"
#include "fulgur/checkpoint/weights_file.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/hub_name.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace fs = std::filesystem;
namespace {

constexpr const char* kAdapterWeights = "adapter_model.safetensors";
constexpr const char* kAdapterConfig = "adapter_config.json";
constexpr std::string_view kPeftPrefix = "base_model.model.";
constexpr std::string_view kWeightEnd = ".weight";

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

std::string peft_name(const std::string& name) {
  return cat(kPeftPrefix, name, is_adapter_part(name) ? kWeightEnd : std::string_view());
}

std::string module_name(std::string_view name) {
  if (name.starts_with(kPeftPrefix)) name.remove_prefix(kPeftPrefix.size());
  const std::string_view start = name.substr(0, name.size() - std::min(name.size(), kWeightEnd.size()));
  return std::string(name.ends_with(kWeightEnd) && is_adapter_part(start) ? start : name);
}

bool is_set(const nlohmann::json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return false;
  if (found->is_boolean()) return found->get<bool>();
  return !found->empty();
}

void read_adapter_config(const fs::path& path, AdaptersFile& file) {
  const auto text = read_regular_file(path);
  if (!text) return;
  const auto refuse = [&](const std::string& what) {
    throw CheckpointError(cat("[checkpoint.read_adapters] ", escape_controls(path.string()), " ", what));
  };
  const auto config = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return refuse("must be a JSON object, as PEFT writes it; it is damaged.");
  for (const char* key : {"use_dora", "use_rslora", "rank_pattern", "alpha_pattern"})
    if (is_set(config, key))
      refuse(cat("describes adapters that are not computed here: ", key,
                 " must not be set. Merge them into the weights in Python (merge_and_unload)."));
  if (!config.contains("r") || !config["r"].is_number_integer() || !config.contains("lora_alpha") ||
      !config["lora_alpha"].is_number())
    refuse("must name the numbers r and lora_alpha of adapters of the type LORA.");
  file.rank = config["r"].get<int64_t>();
  file.alpha = config["lora_alpha"].get<double>();
}

// The modules that PEFT saves as a whole.
std::vector<std::string> modules_of(const std::vector<std::string>& tensors) {
  std::set<std::string> modules;
  for (const std::string& name : tensors)
    if (const size_t dot = name.rfind('.'); dot != std::string::npos) modules.insert(name.substr(0, dot));
  return {modules.begin(), modules.end()};
}

std::string config_text(const AdapterRecord& record) {
  nlohmann::ordered_json config{{"peft_type", "LORA"},
                                {"r", record.rank},
                                {"lora_alpha", record.alpha},
                                {"lora_dropout", record.dropout},
                                {"target_modules", record.layers},
                                {"modules_to_save", nullptr},
                                {"bias", "none"},
                                {"fan_in_fan_out", false},
                                {"task_type", nullptr},
                                {"base_model_name_or_path", nullptr},
                                {"inference_mode", true}};
  if (const auto modules = modules_of(record.trained); !modules.empty()) config["modules_to_save"] = modules;
  return config.dump(2) + "\n";
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
    const Tensor a = adapter_tensor(tensors, name_a), b = adapter_tensor(tensors, name_b);
    Tensor& weight = adapter_tensor(tensors, layer + ".weight");
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
  for (auto& [name, tensor] : weights.tensors) file.tensors.emplace_back(module_name(name), std::move(tensor));
  read_adapter_config((is_folder ? path : path.parent_path()) / kAdapterConfig, file);
  return file;
}

void write_adapters(const fs::path& folder, const NamedTensors& tensors, const AdapterRecord& record, bool replace) {
  std::set<std::string> wanted(record.trained.begin(), record.trained.end());
  for (const std::string& layer : record.layers) wanted.insert({layer + ".lora_A", layer + ".lora_B"});
  WeightsFile weights;
  weights.format = WeightsFormat::safetensors;
  for (const auto& [name, tensor] : tensors)
    if (wanted.contains(name)) weights.tensors.emplace_back(peft_name(name), tensor);
  if (weights.tensors.size() != wanted.size())
    throw CheckpointError(cat("[checkpoint.adapters] ", wanted.size(),
                              " tensors were trained, of which the checkpoint "
                              "has ",
                              weights.tensors.size(), ". The file is damaged."));
  std::error_code error;
  for (const char* name : {kAdapterConfig, kAdapterWeights})
    if (!replace && fs::exists(folder / name, error))
      throw CheckpointError(cat("[checkpoint.write_adapters] ", escape_controls((folder / name).string()),
                                " exists already. Name another folder, or replace it with --force."));
  fs::create_directories(folder, error);
  // The weights last: whoever finds them finds their config.
  detail::write_durably(folder / kAdapterConfig, config_text(record));
  write_weights_file(folder / kAdapterWeights, weights, replace);
}

}  // namespace fulgur
