#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "fulgur/core/options/monitor_mode.h"

namespace fulgur::detail {

/// Which checkpoints a ModelCheckpoint keeps: the best by score, or the newest if there are no scores. It decides;
/// the callback requests and releases.
class CheckpointRanking {
 public:
  struct Kept {
    std::filesystem::path path;
    double score = 0;
    bool operator==(const Kept&) const = default;
  };
  /// What it remembers.
  struct Standing {
    std::vector<Kept> kept;                             ///< best first
    std::map<uint64_t, std::optional<double>> pending;  ///< requested, not yet written: ticket → score
    std::optional<double> best_score;                   ///< so far; after a failure that of `kept`
    bool operator==(const Standing&) const = default;
  };
  /// What becomes of a checkpoint if it is saved now.
  struct Place {
    bool keep = false;            ///< it is ranked
    bool best = false;            ///< it ranks first
    std::optional<double> score;  ///< a NaN counts as the worst score
  };

  /// `top_k`: how many to keep; -1: all, 0: none.
  CheckpointRanking(bool by_score, MonitorMode mode, int64_t top_k) : by_score_(by_score), mode_(mode), top_k_(top_k) {}

  /// If scores rank, a checkpoint without one is not kept.
  Place place_of(std::optional<double> score) const;
  void requested(uint64_t ticket, const Place& place);
  /// The request has been written as `path`. Returns the checkpoints to release, worst first; `path` may be among them.
  std::vector<std::filesystem::path> published(uint64_t ticket, const std::filesystem::path& path);
  void failed(uint64_t ticket);
  /// Requests of a run that has ended are not answered any more.
  void forget_pending() { standing_.pending.clear(); }
  /// From now on the checkpoints are in `folder`; those that do not count there are forgotten. False if neither a
  /// checkpoint nor a request is left: the ranking then starts from scratch.
  bool move_to(const std::filesystem::path& folder, const std::function<bool(const std::filesystem::path&)>& counts);

  const Standing& standing() const { return standing_; }
  void restore(Standing standing) { standing_ = std::move(standing); }

 private:
  /// The score that a further checkpoint must surpass; nullopt if there is room for it.
  std::optional<double> last_kept_score() const;

  bool by_score_;
  MonitorMode mode_;
  int64_t top_k_;
  Standing standing_;
};

}  // namespace fulgur::detail
