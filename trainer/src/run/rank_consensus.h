#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "fulgur/core/collectives.h"

namespace fulgur::detail {

class Run;

/// What ranks decide together though each sees something else: a signal, a pending to stop, the wall clock, a save that
/// has ended. One exchange of a few integers, begun about once a second and read at the same later step on every rank.
/// In a world of one, all is agreed at once and for nothing.
class RankConsensus {
 public:
  explicit RankConsensus(Run& run) : run_(run) {}

  void start_clock();
  /// Seconds since then: rank 0's clock, as last agreed.
  double clock_s() const;
  /// After each training batch, or each round of an evaluation, on every rank.
  void step();
  /// The next steps take another time than those before; all ranks are at the same place.
  void change_pace();
  /// Now; all ranks are at the same place.
  void settle();

  /// The signal that ends the run, of any rank.
  std::optional<int> signal() const;
  /// True where a stop that was asked for on any rank may be acted on.
  bool stop() const;
  /// True once behind each SIGUSR1 of any rank.
  bool take_save_request();
  /// True once where rank 0's writer has finished a save.
  bool take_save_done();

 private:
  void begin();
  void read();
  bool alone() const;

  Run& run_;
  std::chrono::steady_clock::time_point started_, read_at_;
  std::unique_ptr<PendingReduction> pending_;
  int64_t steps_ = 0, next_ = 1, interval_ = 1, read_at_step_ = 0;
  double clock_s_ = 0;
  int signal_ = 0;
  bool stop_ = false, save_ = false, save_done_ = false;
};

}  // namespace fulgur::detail
