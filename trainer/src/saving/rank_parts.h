#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/strategy.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::detail {

/// A checkpoint that all ranks write at the same time, each its parts.
class RankParts {
 public:
  /// Rank 0 creates the folder in which `folder` is written. All ranks must call it; throws a CheckpointError on all.
  RankParts(Collectives& collectives, std::filesystem::path folder);
  /// Writes what this rank has. May be called on any thread.
  void write(const CheckpointContent& content);
  /// Call after `write` on each rank; `error` if it has failed on this one. Publishes the checkpoint, and returns its
  /// path. All ranks must call it; throws a CheckpointError on all.
  std::filesystem::path commit(const std::optional<CheckpointError>& error);

 private:
  Collectives& collectives_;
  int64_t rank_, ranks_;
  std::filesystem::path folder_, temporary_;
  std::string description_;
};

/// Writes a checkpoint of which each rank has the parts in `content`, and returns its path. All ranks must call it;
/// throws a CheckpointError on all.
std::filesystem::path write_parts_of_ranks(Collectives& collectives, const std::filesystem::path& folder,
                                           const CheckpointContent& content);

/// The result of rank 0, which is a path, on all ranks; if it has thrown a CheckpointError, all throw it.
std::filesystem::path path_of_rank_0(Collectives& collectives, const std::function<std::filesystem::path()>& path);

/// `tensors` of a module as a checkpoint that ranks write together has them: tensors on `meta` in place of those that
/// are divided. Appends what this rank writes of these.
NamedTensors in_parts(const Strategy& strategy, NamedTensors tensors, std::vector<TensorPart>& parts);

}  // namespace fulgur::detail
