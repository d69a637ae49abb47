#pragma once

#include <functional>
#include <memory>

#include "fulgur/core/contracts/loader.h"

namespace fulgur {

/// Reads one batch of a loader ahead and processes it at once. The state is that of the returned batches.
class LookAhead {
 public:
  /// `prepare` gets each batch as soon as it is read.
  LookAhead(std::shared_ptr<Loader> loader, std::function<Batch(const Batch&)> prepare);
  ~LookAhead();
  LookAhead(const LookAhead&) = delete;
  LookAhead& operator=(const LookAhead&) = delete;
  void start_epoch(int64_t epoch);
  void restart_epoch(int64_t epoch);
  bool next(Batch& out);
  /// Reads the following batch; call it once the batch of the last `next` has been taken over.
  void read_ahead();
  void unread();
  StateTree state() const { return position_; }
  void load_state(const StateTree& state);

 private:
  void read();
  void begin(int64_t epoch);

  std::shared_ptr<Loader> loader_;
  std::function<Batch(const Batch&)> prepare_;
  int64_t epoch_ = 0;
  Batch ahead_;
  bool has_ahead_ = false, looked_ = false, stale_ = false, gave_ = false;
  StateTree position_;      ///< the loader's state after the batch that was returned last
  StateTree before_last_;   ///< before that one
  StateTree behind_ahead_;  ///< after the prefetched batch
};

}  // namespace fulgur
