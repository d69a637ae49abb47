#pragma once

#include <c10/core/Event.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/checkpoint/async_writer.h"
#include "fulgur/checkpoint/checkpoint_writer.h"
#include "fulgur/core/contracts/run_context.h"
#include "fulgur/core/contracts/strategy.h"
#include "saving/failed_saves.h"
#include "saving/kept_checkpoints.h"
#include "saving/late_tensors.h"
#include "saving/rank_parts.h"

namespace fulgur::detail {

/// The services that a CheckpointStore needs from the run whose checkpoints it keeps.
class CheckpointHost {
 public:
  virtual ~CheckpointHost() = default;
  /// The current state of the run, with that of the store. All ranks call it.
  virtual CheckpointContent collect(bool weights_only, StateTree store) = 0;
  /// Adds what is known only after the rows of metrics are written to a content that was collected before.
  virtual std::function<void(CheckpointContent&)> late_values() = 0;
  /// Writes the pending rows of metrics, and with `and_act` carries out what the policy for NaN decides about them.
  virtual void write_rows(bool and_act) = 0;
  /// Reads the exchanges between ranks that must be complete before a request is acted on.
  virtual void settle_steps() = 0;
  /// Calls `then` once the rows begun so far are written.
  virtual void when_rows_are_written(std::function<void()> then) = 0;
  /// Throws if ranks that must be equal differ, or an exchange between them has failed. All ranks call it.
  virtual void check_ranks() = 0;
  /// A norm of all weights, computed on the device: not finite if one of them is not; undefined if there is no check.
  virtual Tensor weight_norm() = 0;
  virtual bool divides_parameters() const = 0;
  /// Whether all ranks write a checkpoint together, each its parts.
  virtual bool saves_parts() const = 0;
  /// Gathers parameters of which ranks have parts, until the result is destroyed.
  virtual std::unique_ptr<WholeParameters> whole_parameters() = 0;
  /// The name of the first weight of this rank that is not finite. Waits for the device.
  virtual std::optional<std::string> bad_weight() = 0;
  /// True once after rank 0's save in flight has ended; only with several ranks, on all of them at the same step.
  virtual bool take_save_done() = 0;
  /// False once nothing more may be saved.
  virtual bool allows_saves() const = 0;
  /// True once the other ranks no longer take part.
  virtual bool is_alone() const = 0;
  virtual void published(const CheckpointInfo& info) = 0;
  virtual void failed(const CheckpointInfo& info, const CheckpointError& error) = 0;
};

/// How a run relates to the checkpoint that it was restored from.
struct ResumedCheckpoint {
  std::filesystem::path path;
  bool same_run = false;    ///< the run continues in the run folder that the checkpoint belongs to
  bool unfinished = false;  ///< that run was not marked as finished there; on rank 0
  bool is_named = false;    ///< the user gave its own path: it must stay
};

/// The checkpoints of a run: writes those that are requested (in the background unless `async_checkpoint` is off),
/// links `last` and `best`, notifies callbacks and loggers, and removes those that no longer have an owner. On the
/// run's thread.
class CheckpointStore {
 public:
  struct Settings {
    bool async = true;            ///< `trainer.async_checkpoint`
    bool stops_on_error = false;  ///< `trainer.on_save_error: stop`
    std::shared_ptr<CheckpointWriter> writer = std::make_shared<CheckpointWriter>();
  };
  CheckpointStore(RunContext& run, CheckpointHost& host, Settings settings)
      : run_(run), host_(host), settings_(std::move(settings)), kept_(run), late_(run) {}

  /// Queues a request, which `act_on_requests` will carry out. Returns its ticket.
  uint64_t request(CheckpointRequest request);
  bool has_requests() const { return !requests_.empty(); }
  /// Whether this run has written the checkpoint. All ranks must call it.
  bool owns(const std::filesystem::path& path) const { return kept_.owns(path); }
  /// `owner` no longer keeps the checkpoint.
  void release(const std::filesystem::path& path, std::string_view owner);
  /// Takes the writer's results, and starts the saves that were requested: the one place where requests are acted on.
  /// Non-finite weights are not saved.
  void act_on_requests();
  /// Call before the first training step.
  void start_training();
  /// Call before anything other than a step's forward and backward writes weights or optimizer state: on a GPU, copies
  /// for the save in flight may still be running, and the next work of the current stream will wait for them.
  void before_writes();
  /// True on rank 0 if the save in flight has finished and this has not been reported yet.
  bool save_is_done() const { return in_flight_ && (begin_error_ || (writer_ && !writer_->busy())); }
  /// True while this rank writes its parts of a checkpoint.
  bool writes_parts() const { return parts_ && writer_ && writer_->busy(); }
  /// Publishes the save in flight if all ranks have written their parts of it; it is reported when requests are acted
  /// on next. Call between the rounds of an evaluation, on all ranks.
  void publish_parts();
  /// Waits for the save in flight and reports it. With several ranks all must call it.
  void wait_for_save();
  /// Call when the run resumes from this checkpoint, which contains the store's state. All ranks must call it.
  void resumed_from(const ResumedCheckpoint& checkpoint, const CheckpointOrigin& origin, const StateTree& state);
  /// The ticket of the next request.
  uint64_t next_ticket() const { return next_ticket_; }
  /// Discards the requests from ticket `first` on, since the state that they were to save is discarded; `why` is for
  /// the report.
  void discard_requests(const std::string& why, uint64_t first = 0);
  /// Reports the resumed checkpoint to callbacks as if it had been written now: they expected that report when it was
  /// written, and the process may have died before it. Call after on_train_start.
  void publish_resumed();

  const std::optional<std::filesystem::path>& last() const { return kept_.last(); }
  const std::optional<std::filesystem::path>& best() const { return kept_.best(); }
  /// Whether the newest save that was started has the current state: after this batch, and after the validation and the
  /// epoch's end that may follow it.
  bool is_saved() const;
  /// The name of the last checkpoint if it was saved after this batch, but before its validation or its epoch's end.
  std::optional<std::filesystem::path> name_at_batch() const;
  /// The number of saves in the run so far.
  int64_t saves() const { return saves_; }

 private:
  void start_save(uint64_t ticket, const CheckpointRequest& request);
  /// Begins to write `content` in the background: rank 0 writes, the others wait for its result at the end of the save.
  void begin_writing(CheckpointInfo info, const CheckpointContent& content);
  /// Likewise; all ranks write their parts.
  void begin_writing_parts(CheckpointInfo info, const CheckpointContent& content);
  AsyncCheckpointWriter::Result commit_parts(const AsyncCheckpointWriter::Result& own);
  /// What this process's writer has done of the save in flight; waits for it.
  std::vector<AsyncCheckpointWriter::Result> own_results();
  /// The first weight that is not finite on any rank that writes it; empty if all are.
  std::string bad_weight_of_ranks();
  /// Writes `content` now: on rank 0, or the parts of each rank. Returns the path; throws a CheckpointError on all
  /// ranks.
  std::filesystem::path write_now(const std::filesystem::path& folder, const CheckpointContent& content);
  /// Answers a request of this process with the checkpoint that the run resumed from, if that is the same.
  bool take_resumed(uint64_t ticket, const CheckpointRequest& request);
  /// Which checkpoints exist and who keeps them, this request and later ones.
  StateTree state(uint64_t ticket, const CheckpointRequest& request) const;
  AsyncCheckpointWriter::Result result_of_all_ranks(AsyncCheckpointWriter::Result result) const;
  void finish_save(const AsyncCheckpointWriter::Result& result);
  CheckpointInfo info_of_now(uint64_t ticket, std::filesystem::path path, CheckpointRequest request) const;
  void publish(CheckpointInfo& info);
  void report_failure(const CheckpointInfo& info, const CheckpointError& error);
  void report_refusal(const CheckpointInfo& info, const CheckpointError& error);
  void prune();
  bool judged_later() const;
  /// True if a save starts before the rows of its steps are written, and waits until they are.
  bool awaits_rows() const;
  AsyncCheckpointWriter::Rules rules_for(const std::filesystem::path& folder, const CheckpointContent& content);
  AsyncCheckpointWriter::Result without_torn(AsyncCheckpointWriter::Result result);
  void check_exchanges_before_save();
  void complete_save(uint64_t save);

  RunContext& run_;
  CheckpointHost& host_;
  Settings settings_;
  std::vector<std::pair<uint64_t, CheckpointRequest>> requests_;
  uint64_t next_ticket_ = 1;
  bool released_ = false;
  KeptCheckpoints kept_;
  std::optional<std::filesystem::path> resumed_path_;
  uint64_t first_own_ticket_ = 0;  // requests before it come from the checkpoint
  int64_t saves_ = 0;
  struct Place {
    int64_t global_step, batches, validations, epochs;
    bool operator==(const Place&) const = default;
  };
  Place place() const;
  std::optional<Place> saved_;                   // the newest save
  std::optional<AsyncCheckpointWriter> writer_;  // created by the first save
  std::optional<CheckpointInfo> in_flight_, resumed_;
  std::optional<CheckpointError> begin_error_;  // rank 0 could not start the save, and must notify the others
  FailedSaves failed_saves_;
  bool refused_ = false;  // a save was refused in this process
  LateTensors late_;
  std::string torn_;                  // the tensor that was written while it was copied for the save in flight
  std::optional<c10::Event> begun_;   // the device's work before the save in flight; with several ranks
  std::shared_ptr<RankParts> parts_;  // of the save in flight, which the writer's thread uses, too
  std::optional<AsyncCheckpointWriter::Result> published_parts_;  // what became of them, not reported yet
};

/// A request for a checkpoint of the current state, named `epoch=E-step=S`, where E is the last epoch that was trained
/// in. Its purpose is a resume: nothing keeps it once a newer checkpoint is `last`.
CheckpointRequest checkpoint_of_now(const RunContext& run, std::string reason);

}  // namespace fulgur::detail
