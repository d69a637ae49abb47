#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/history/run.h"

namespace fulgur::history {

/// What `finished.json` says.
struct FinishedFile {
  std::string reason;
  int64_t epochs = 0, steps = 0;
  double fit_time_s = 0;
};

/// nullopt if the run has not finished, or if the file is damaged.
std::optional<FinishedFile> read_finished(const std::filesystem::path& run_dir);

/// The error in `failed.json`; nullopt if the last process of the run has not ended with an exception.
std::optional<std::string> read_failure(const std::filesystem::path& run_dir);

/// The checkpoints in a folder, by step, with the values of `state.json` that describe them. Tensors are not read.
std::vector<CheckpointEntry> read_checkpoints(const std::filesystem::path& folder);

/// The completed epochs at a checkpoint.
std::optional<int64_t> completed_epochs(const std::filesystem::path& checkpoint);

/// The system that wrote a checkpoint, from its manifest, as names and texts.
std::vector<std::pair<std::string, std::string>> read_system(const std::filesystem::path& checkpoint);

}  // namespace fulgur::history
