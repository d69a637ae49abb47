#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "fulgur/core/state/stage.h"
#include "logging/late_media.h"
#include "logging/log_store.h"
#include "run/metric_rows.h"
#include "services/nonfinite_policy.h"

namespace fulgur::detail {

/// Rows of step values in transfer from the device to the loggers. On a GPU the values of a row are copied while
/// training continues, and the row is written `kLater` batches later, when they are certain to have arrived: `RunAhead`
/// keeps the host from being further ahead. So no step waits for a row, and the time at which callbacks see it does not
/// depend on the speed of the device. On other devices a row is written at once.
///
/// All ranks must begin, advance and settle at the same steps.
class StepRows {
 public:
  static constexpr int64_t kLater = 5;
  /// `act` gets what to do about non-finite losses of a row.
  StepRows(RunState& run, LogStore& logs, NonFinitePolicy& finite, std::function<void(NonFiniteDecision)> act)
      : run_(run), logs_(logs), finite_(finite), act_(std::move(act)) {}
  /// A batch of `stage` has ended: begins a row of the step window if it is due, and writes older ones. With `force` a
  /// row is due, and all rows are written.
  void end_batch(RunningStage stage, bool force);
  /// Closes the window of `stage`; its row belongs to the current step.
  void begin(RunningStage stage);
  /// A batch has ended: writes the rows that are old enough, and acts on non-finite losses in them.
  void advance();
  /// Writes all rows; waits for the device. Acts on non-finite losses, unless `and_act` is false: then `advance` or the
  /// next `settle` does.
  void settle(bool and_act = true);
  /// Sends media to the loggers. Those of a training batch wait until the batch has ended. From a batch on a GPU, they
  /// are sent like a row begun now; else at once.
  void add_media(const MediaRecord& record);
  /// The training batch under way has failed: its media are not sent.
  void drop_media_of_batch() { media_of_batch_.clear(); }
  /// How many media wait for the end of the batch, and the same for those that came after the first `kept`.
  size_t media_of_batch() const { return media_of_batch_.size(); }
  void drop_media_after(size_t kept) {
    media_of_batch_.erase(media_of_batch_.begin() + static_cast<std::ptrdiff_t>(kept), media_of_batch_.end());
  }
  /// Losses of pending rows belong to discarded weights.
  void forgive();
  /// Calls `then` once all rows begun so far are written; immediately if they are.
  void when_written(std::function<void()> then);

 private:
  struct Row {
    LogStore::Window window;
    RunningStage stage;
    RowPlace place;
    BatchRange batches;
    int64_t age = 0;
    bool written = false;  // then only the row's losses still need to be judged
    bool finite = true;
    bool forgiven = false;
    std::function<void()> then = {};
    std::vector<LateMedia> media = {};  // if any, the row has no values
  };
  /// Sends media, or begins a row for them if they come from a GPU and this may not wait for it.
  void begin_media(std::vector<LateMedia> media, bool may_wait);
  void write(Row& row);
  void judge(const Row& row);

  RunState& run_;
  LogStore& logs_;
  NonFinitePolicy& finite_;
  std::function<void(NonFiniteDecision)> act_;
  std::deque<Row> rows_;
  std::vector<LateMedia> media_of_batch_;
};

}  // namespace fulgur::detail
