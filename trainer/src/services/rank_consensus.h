#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "fulgur/core/contracts/collectives.h"
#include "process/run_clock.h"

namespace fulgur::detail {

/// The facts that only this rank knows; asked when an exchange begins. With one rank they are asked immediately.
struct LocalVotes {
  std::function<std::optional<std::string>()> stop_reason;
  std::function<std::optional<int>()> signal;
  std::function<bool()> take_save_request;  ///< true once after each SIGUSR1
  std::function<bool()> save_is_done;       ///< asked on rank 0 only
  std::function<bool()> writes_parts = {};  ///< this rank still writes its parts of a checkpoint; empty: never
};

/// Decisions that ranks make together although each sees something different: a signal, a request to stop, the wall
/// clock, a save that has ended. It uses one exchange of a few integers, which begins about once a second and is read
/// at the same later step on every rank. With one rank, everything is agreed immediately and at no cost. On the run's
/// thread.
class RankConsensus {
 public:
  /// `on_stop` gets the reason of the rank that the others follow: the first by rank.
  RankConsensus(LocalVotes votes, std::function<void(std::string)> on_stop);

  /// Starts the clock. `every`: steps between exchanges; nullopt: about a second.
  void start(Collectives& collectives, std::optional<int64_t> every);
  /// Seconds since the start, by rank 0's clock, as last agreed.
  double clock_s() const;
  /// Call after each training batch, or each round of an evaluation, on every rank.
  void step();
  /// Call if the next steps will take a different time from those before; all ranks are at the same place.
  void change_pace();
  /// Makes an exchange now; all ranks are at the same place.
  void settle();

  /// The signal, received by any rank, that ends the run.
  std::optional<int> signal() const;
  /// True if a stop that was requested on any rank may be acted on.
  bool stop_agreed() const;
  /// True once after each SIGUSR1 of any rank.
  bool take_save_request();
  /// True once after the writers of all ranks have finished a save; only with several ranks.
  bool take_save_done();

 private:
  void begin();
  void read();
  bool alone() const { return !collectives_ || collectives_->world_size() == 1; }

  LocalVotes votes_;
  std::function<void(std::string)> on_stop_;
  Collectives* collectives_ = nullptr;
  std::optional<int64_t> every_;
  std::chrono::steady_clock::time_point started_ = run_clock_now(), read_at_ = started_;
  std::unique_ptr<PendingReduction> pending_;
  int64_t steps_ = 0, next_ = 1, interval_ = 1, read_at_step_ = 0;
  double clock_s_ = 0;
  int signal_ = 0;
  bool stop_ = false, save_ = false, save_done_ = false;
};

}  // namespace fulgur::detail
