#pragma once

#include <string_view>

/// Keys of a checkpoint's state that are used outside of the table of its contents (checkpoint_table.h).
namespace fulgur::detail::checkpoint_keys {

inline constexpr std::string_view kImported = "imported";  ///< only in checkpoints that `import` has made
inline constexpr std::string_view kWeightsOnly = "weights_only";
inline constexpr std::string_view kHparams = "hparams";
inline constexpr std::string_view kConfig = "config";
inline constexpr std::string_view kConfigWritten = "config_written";
inline constexpr std::string_view kMetrics = "metrics";
inline constexpr std::string_view kData = "data";
inline constexpr std::string_view kCallbacks = "callbacks";
inline constexpr std::string_view kProgress = "progress";
inline constexpr std::string_view kNonfinite = "nonfinite";
inline constexpr std::string_view kLoaders = "loaders";
inline constexpr std::string_view kRng = "rng";
inline constexpr std::string_view kRanks = "ranks";  ///< not in the table: the entries `per_rank` of the other ranks

/// Only in checkpoints of `Fabric::save`, which have no config, no options of the module and no state of a Trainer.
inline constexpr std::string_view kFabric = "fabric";
inline constexpr std::string_view kFabricLoop = "loop";  ///< the state that the loop has passed to `save`

}  // namespace fulgur::detail::checkpoint_keys
