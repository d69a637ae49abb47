#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/contracts/metric.h"
#include "logging/log_store.h"

namespace fulgur::detail {

/// The metric objects that were logged in the open epochs, by name and stage. They belong to the module.
class MetricStore {
 public:
  /// Remembers the object until its epoch is closed. At its first call after a resume, it gets the state of the
  /// checkpoint in addition to its own.
  void log(std::string_view name, LogScope scope, RunningStage stage, Metric& metric, const LogOptions& options);
  /// Moves the state of a copy of the module into the run's object of that name.
  void take_from_replica(std::string_view name, Metric& of_replica, RunningStage stage);

  struct Matrix {
    std::string name;
    Tensor values;  // (rows, columns)
    std::string axes = {};
  };
  /// Logs the values of all objects of the stage as values of the epoch, resets the objects and forgets them. Returns
  /// the values that are matrices. With several ranks, which must all call it, the values are those of all ranks. A
  /// rank that has failed alone passes no `collectives`, and gets no values. Does not wait for the device of one rank.
  std::vector<Matrix> close_epoch(RunningStage stage, LogStore& logs, Collectives* collectives);
  /// Resets the objects of `stage` and forgets them.
  void reset(RunningStage stage);
  /// Whether an open epoch will have a value of this name when it ends.
  bool may_log(std::string_view final_name) const;

  /// Updates in one recorded step.
  struct Updates;
  /// From here on, objects are updated by a step of `stage` that is recorded. Throws if one of them keeps lists, to
  /// which a launch could not append.
  void start_recording(RunningStage stage = RunningStage::train);
  /// The updates since then, which do not count: they are to be counted after each launch.
  std::vector<Updates> take_recording();
  void after_replay(const std::vector<Updates>& recorded);

  /// The objects of the training epoch that is under way: for each name, a list of states to be merged.
  StateTree state() const;
  void load_state(StateTree state) { pending_ = std::move(state); }
  /// The state of a rank if the checkpoint was saved with other ranks: one of them continues all states.
  static StateTree of_rank(const std::vector<const StateTree*>& ranks, bool continues);
  /// The same objects with copies of their states.
  struct Mark;
  Mark mark() const;
  void restore(const Mark& mark);

 private:
  struct Entry {
    std::string name;
    RunningStage stage;
    Metric* metric;
    LogOptions options;
  };
  Entry* find(std::string_view name, RunningStage stage);
  void remember(Entry entry);
  StateTree states(RunningStage stage) const;
  /// Gives each object the states of all ranks, in their order.
  void merge_ranks(RunningStage stage, Collectives& collectives);
  static void log_value(const Entry& entry, LogStore& logs, std::vector<Matrix>& matrices);

  std::vector<Entry> entries_;  // in the order of their first log()
  StateTree pending_;           // states of a checkpoint whose objects were not logged since
  bool recording_ = false;
  std::map<Metric*, int64_t> updates_before_;  // those at the begin of the recording
};

struct MetricStore::Updates {
  Entry of;
  int64_t count;
};

struct MetricStore::Mark {
  std::vector<std::pair<Entry, StateTree>> objects;
  StateTree pending;
};

}  // namespace fulgur::detail
