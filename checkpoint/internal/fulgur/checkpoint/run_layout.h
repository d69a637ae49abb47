#pragma once

/// The names of what a run folder contains.
namespace fulgur::run_layout {

inline constexpr const char* kCheckpoints = "checkpoints";  ///< the folder of the checkpoints and of the links to them
inline constexpr const char* kExtension = ".ckpt";          ///< of a checkpoint, which is a folder
inline constexpr const char* kLast = "last.ckpt";           ///< link to the newest checkpoint
inline constexpr const char* kBest = "best.ckpt";           ///< link to the best one
inline constexpr const char* kConfig = "config.yaml";       ///< the resolved config
inline constexpr const char* kVerbLine = "# verb: ";  ///< a comment at the start of the config: the verb of the run

inline constexpr const char* kFinished = "finished.json";  ///< only in the folder of a run that is finished
inline constexpr const char* kNamed =
    "named_checkpoints.txt";                           ///< those that `ckpt_path` named, one per line; they stay
inline constexpr const char* kFailed = "failed.json";  ///< only in the folder of a fit that an exception has ended

}  // namespace fulgur::run_layout
