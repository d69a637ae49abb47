#pragma once

#include <filesystem>
#include <vector>

#include "fulgur/core/collectives.h"
#include "fulgur/core/outputs.h"

namespace fulgur::detail {

/// The outputs of all ranks; all ranks must call it. `in_turns`: each read every world_size-th sample, so that the rows
/// are in the order of the data set; else they come rank by rank.
Outputs in_dataset_order(Collectives& collectives, Outputs own, bool in_turns);

/// Writes `predictions.safetensors` (all samples of an output in one tensor, in dataset order) and `predictions.jsonl`
/// (one line per sample) into `folder`, and returns their paths. With several loaders, names of tensors start with
/// `dataloader_idx_i/`, and each line says its `dataloader_idx`. Non-finite numbers are the texts NaN, Infinity and
/// -Infinity in the second file, as JsonlLogger writes them. Throws a CheckpointError where a file cannot be written.
std::vector<std::filesystem::path> write_predictions(const std::filesystem::path& folder,
                                                     const std::vector<Outputs>& loaders);

}  // namespace fulgur::detail
