#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/contracts/run_context.h"

namespace fulgur::detail {

/// The checkpoints that a run has written: who keeps each of them, which are `last` and `best`, and which may be
/// removed. Paths are absolute and normal. Only rank 0 changes files; the other ranks know the same.
class KeptCheckpoints {
 public:
  explicit KeptCheckpoints(RunContext& run) : run_(run) {}

  const std::optional<std::filesystem::path>& last() const { return last_; }
  const std::optional<std::filesystem::path>& best() const { return best_; }
  /// The name of this run in the origin of its checkpoints.
  std::string run_name() const;
  /// Whether this run has written the checkpoint. All ranks must call it.
  bool owns(const std::filesystem::path& path) const;

  /// Adds a checkpoint that was written, and links `last` and `best` to it if they should be. Throws a CheckpointError
  /// if a link cannot be made.
  void add(const CheckpointInfo& info);
  /// `owner` no longer keeps the checkpoint.
  void release(const std::filesystem::path& path, std::string_view owner);
  /// Removes those that have no keeper and to which no link points.
  void remove_released();

  /// The keys `kept` and `best_owner` of a checkpoint that `request` asks for.
  StateTree state(const CheckpointRequest& request) const;
  /// In the run folder only the name of a checkpoint is stored, since the folder may be moved or copied.
  std::string path_in_state(const std::filesystem::path& path) const;
  /// A run continues in its folder: `best` and the name of the run are as they were. All ranks call this and the next
  /// two functions, in this order.
  void continue_run(const CheckpointOrigin& origin, const StateTree& state);
  /// Takes over the checkpoints that an earlier process of this run has left. If `checkpoint` is the newest, later
  /// checkpoints of weights alone get no keeper, since the run will write them again. `requested` are the names of
  /// saves that the process did not get to. Returns the highest counter of a save that exists, at least `saves`, the
  /// counter of `checkpoint`.
  int64_t take_over(const std::filesystem::path& checkpoint, const StateTree& state,
                    const std::vector<std::filesystem::path>& requested, int64_t saves);
  /// The run has resumed from this checkpoint, which is now `last`. If the user has named it, the run never removes it.
  void resumed_from(const std::filesystem::path& path, bool is_named);

 private:
  /// The callback whose ranking `best` follows.
  struct BestOwner {
    std::string key;
    bool monitors = false;  ///< it ranks by a metric; without one the newest is the best
  };
  /// Like `owns`, as far as this process sees the files.
  bool is_own(const std::filesystem::path& path) const;
  /// Whether `best` should point to what is saved by `request`. A ranking by a metric takes precedence over one
  /// without; of two rankings by metrics, the first to save counts.
  bool takes_best(const CheckpointRequest& request) const;
  std::filesystem::path folder() const;
  std::filesystem::path names_file() const;

  RunContext& run_;
  std::optional<std::string> began_as_;  // the name of this run, if it continues
  std::map<std::filesystem::path, std::set<std::string>> keepers_;
  std::optional<BestOwner> best_owner_;
  std::optional<std::filesystem::path> last_, best_;
};

/// How the origin of checkpoints names the run that keeps them in this folder, unless it was moved.
std::string origin_of_folder(const std::filesystem::path& checkpoints);

/// A canonical form of a path, so that paths can be compared.
std::filesystem::path plain_path(const std::filesystem::path& path);

}  // namespace fulgur::detail
