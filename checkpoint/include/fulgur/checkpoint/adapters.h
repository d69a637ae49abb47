#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur {

/// The key of an `AdapterRecord` in a checkpoint's state; null there if the module has no adapters.
inline constexpr std::string_view kAdaptersKey = "adapters";

/// Low-rank adapters of a module. An adapted layer X has the tensors `X.weight`, `X.lora_A` (rank, in_features) and
/// `X.lora_B` (out_features, rank), and stands for the weight W + alpha / rank · B A.
struct FULGUR_API AdapterRecord {
  int64_t rank = 0;
  double alpha = 0;
  double dropout = 0;
  std::vector<std::string> layers;   ///< names of the layers that have adapters
  std::vector<std::string> trained;  ///< names of the other tensors that change in training
  StateTree state() const;
};

/// What the state of a checkpoint says about adapters; nullopt if it has none.
FULGUR_API std::optional<AdapterRecord> adapters_of(const StateTree& checkpoint_state);

/// Puts each adapter into the weight of its layer and removes its tensors: the rest are those of the module without
/// adapters. Sums are in float32, or in float64 for such weights. Throws a CheckpointError if a tensor is missing.
FULGUR_API void merge_adapters(NamedTensors& tensors, const AdapterRecord& record);

/// Adapters that PEFT, or `write_adapters`, has written.
struct FULGUR_API AdaptersFile {
  NamedTensors tensors;  ///< under the names of the module: `X.lora_A`, `X.lora_B`, and what else was trained
  std::optional<int64_t> rank = {};  ///< of adapter_config.json, if there is one
  std::optional<double> alpha = {};  ///< the same
};

/// Reads a folder of PEFT's (`adapter_model.safetensors`, `adapter_config.json`), or its safetensors file, beside which
/// the config is looked for. Throws a CheckpointError, also for adapters of another form (DoRA, rsLoRA, patterns of
/// ranks, other types than LORA) and for those whose start has changed the base weights (PiSSA, OLoRA).
FULGUR_API AdaptersFile read_adapters(const std::filesystem::path& path);

/// Writes the adapters, and the other tensors that were trained, as such a folder. A new folder is complete when it
/// appears. Files that exist are replaced if `replace` is true, and are an error otherwise; the old weights are removed
/// before the new config appears, so that weights never have the config of others. Throws a CheckpointError.
FULGUR_API void write_adapters(const std::filesystem::path& folder, const NamedTensors& tensors,
                               const AdapterRecord& record, bool replace = false);

}  // namespace fulgur
