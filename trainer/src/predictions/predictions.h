#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/contracts/data_module.h"
#include "predictions/predicted_share.h"

namespace fulgur::detail {

/// Bytes of outputs read, sent and written at a time.
inline constexpr int64_t kPredictionBlock = 4 << 20;

/// Writes `predictions.safetensors` (all samples of an output in one tensor) and `predictions.jsonl` (one line per
/// sample) of all ranks into `folder` on rank 0, which gets their paths. All ranks must call it. Rows are in the order
/// of the data set if ranks read samples in turns, else rank by rank. With several loaders, tensor names start with
/// `dataloader_idx_i/`, and each line has its `dataloader_idx`. Lines also have the texts of the shares and, for the
/// predictions of a classifier of `classes` (`probabilities` of all classes and `prediction`), `class`, the name of the
/// predicted class, unless an output or a text has that name. No rank holds more than its share and two blocks of
/// about `block_bytes`. Lines also have what `data` says about them (`prediction_texts`). Either both files appear
/// complete, or neither: throws a CheckpointError if one cannot be written.
std::vector<std::filesystem::path> write_predictions(Collectives& collectives, const std::filesystem::path& folder,
                                                     const std::vector<PredictedShare>& shares,
                                                     int64_t block_bytes = kPredictionBlock,
                                                     const std::vector<std::string>& classes = {},
                                                     const DataModule* data = nullptr);

}  // namespace fulgur::detail
