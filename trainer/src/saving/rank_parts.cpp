#include "saving/rank_parts.h"

#include <utility>
#include <vector>

#include "fulgur/checkpoint/checkpoint_parts.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace fs = std::filesystem;

fs::path path_of_rank_0(Collectives& collectives, const std::function<fs::path()>& path) {
  std::string outcome;
  if (collectives.rank() == 0) {
    try {
      outcome = "=" + path().string();
    } catch (const std::exception& error) {
      outcome = cat("!", error.what());
    }
  }
  outcome = collectives.broadcast_text(outcome, 0);
  if (outcome.starts_with('!')) throw CheckpointError(outcome.substr(1));
  return outcome.substr(1);
}

RankParts::RankParts(Collectives& collectives, fs::path folder)
    : collectives_(collectives),
      rank_(collectives.rank()),
      ranks_(collectives.world_size()),
      folder_(std::move(folder)),
      temporary_(path_of_rank_0(collectives, [&] { return begin_parts(folder_); })) {}

void RankParts::write(const CheckpointContent& content) {
  description_ = write_parts(temporary_, rank_, ranks_, content);
}

fs::path RankParts::commit(const std::optional<CheckpointError>& error) {
  const std::vector<std::string> outcomes =
      collectives_.gather_text(error ? cat("!", error->what()) : "=" + description_);
  std::vector<std::string> descriptions;
  std::optional<std::string> failure;
  for (const std::string& outcome : outcomes) {
    if (outcome.starts_with('!') && !failure)
      failure = cat(outcome.substr(1), " This was rank ", descriptions.size(), ".");
    descriptions.push_back(outcome.substr(1));
  }
  if (failure) {
    if (rank_ == 0) drop_parts(temporary_);
    throw CheckpointError(*failure);
  }
  return path_of_rank_0(collectives_, [&] { return commit_parts(temporary_, folder_, descriptions); });
}

fs::path write_parts_of_ranks(Collectives& collectives, const fs::path& folder, const CheckpointContent& content) {
  RankParts parts(collectives, folder);
  std::optional<CheckpointError> failure;
  try {
    parts.write(content);
  } catch (const std::exception& error) {
    failure = CheckpointError(error.what());
  }
  return parts.commit(failure);
}

NamedTensors in_parts(const Strategy& strategy, NamedTensors tensors, std::vector<TensorPart>& parts) {
  for (auto& [name, tensor] : tensors)
    if (auto part = strategy.part_to_save(tensor)) tensor = parts.emplace_back(std::move(*part)).whole;
  return tensors;
}

}  // namespace fulgur::detail
