#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capture/watched_members.h"
#include "fulgur/core/device/graph_capture.h"
#include "fulgur/core/device/recordable_step.h"
#include "fulgur/data/device_prefetcher.h"
#include "logging/host_numbers.h"
#include "run/services.h"

namespace fulgur::detail {

/// `capture: true`: after a few eager steps, the device's work of a step (forward, backward, clipping, optimizer,
/// accumulating logged values) is recorded and from then on launched as one unit. If a recording is out of date, a new
/// one is made after a few eager steps.
///
/// On the CPU, each shape of batches has its recordings, up to `capture_shapes`; further ones run eagerly. A shape is
/// recorded when it comes again, so not that of an epoch's last batch. On a GPU, batches of another shape run eagerly;
/// in a run of one process, a new recording is made once several have come in a row.
///
/// The loader writes batches alternately into two sets of tensors (InputSets), each of which has a recording. With one
/// set, a copy would have to wait for the previous step, whose backward reads the batch to the end. Copying on the
/// device into the recording's own input would add one copy per entry to each step, and each batch would be stored
/// three times (the next one, the current one, the input) instead of twice. A second recording costs only its nodes:
/// activations and gradients share one memory pool, since the two never run at the same time.
///
/// With accumulation, the first batch of a window, those between and the last are recorded separately: the first
/// creates the gradients, the others add to them, and the last also steps. Eager mode does the same, so the numbers are
/// bit-identical.
class CapturedStep {
 public:
  /// What is known of the batches that follow: how many the epoch has, and after how many more, this one included, an
  /// evaluation runs inside the epoch.
  struct ExpectedEnd {
    std::optional<int64_t> batches_in_epoch = {}, batches_to_evaluation = {};
  };
  /// `body` is the device's part of a step of automatic optimization: it computes the gradients, and for the last batch
  /// of a window also steps and sets the gradients to undefined.
  using Body = std::function<StepOutput(const Batch&, int64_t batch_idx, bool last_of_window)>;
  CapturedStep(RunState& run, Services& services, std::unique_ptr<GraphCapture> graph, Body body);
  ~CapturedStep();

  /// The loader of the batches, if it prefetches them to the device; else nullptr.
  void set_prefetcher(DevicePrefetcher* prefetcher);
  /// Whether the batch is in memory that recordings read, as written by its loader. They convert it to the run's memory
  /// format themselves.
  bool reads(const Batch& batch) const { return sets_ && sets_->find(batch); }
  /// The step's output if the recorded step was launched; nullopt if the step must run eagerly. In neither case is the
  /// batch counted in its window.
  std::optional<StepOutput> step(const Batch& batch, int64_t batch_idx, const ExpectedEnd& end);
  /// Call before an evaluation: frees the recordings if the device's memory cannot hold both, since nothing else can
  /// use their pool.
  void before_evaluation();
  /// Call for an eager step, and destroy the returned object after it: a step before a recording runs on the recording
  /// stream. Inspects what the step logs.
  std::shared_ptr<void> eager_step(const Batch& batch);

 private:
  struct Recording {
    std::unique_ptr<GraphCapture> graph;
    StepOutput output;  // the recording writes it
    std::vector<LogStore::Addition> additions;
    std::vector<MetricStore::Updates> updates;
    // The gradients of all parameters, before a launch and after it.
    std::vector<Tensor> gradients_before, gradients_after;
    int64_t launches = 0, epoch = 0, section = 0;  // those of the last recording
    int64_t reasons = 0;                           // to compare it, until then
    int64_t unverified = 0;                        // launches since then
  };
  /// Indexed by the batch's set and its place in the window.
  using Recordings = std::array<std::optional<Recording>, InputSets::kSets * 4>;

  /// What belongs to the batches of one shape.
  struct Shape {
    BatchKind kind;     // before the first recording: of the last batch; then: of the recorded batches
    Batch inputs = {};  // what batches are copied into
    Recordings recordings = {};
    bool recorded = false;
    int64_t epoch = -1;                              // in which such a batch came last
    bool recurs = false;                             // one has come before the last, in its epoch or directly
    int64_t last_captured = -1, last_of_epoch = -1;  // batches: the last captured one, and that of the previous epoch
    // What eager steps logged, within a window and at its end.
    std::array<std::optional<HostNumbers>, 2> logged = {};
  };

  bool first_of_window() const { return run_.window.done == 0; }
  bool last_of_window() const { return run_.window.done + 1 == run_.window.length; }
  /// Whether the loader will write batches like this one into sets from now on.
  bool ask_for_sets(const Batch& batch);
  /// The set that contains the batch; without a loader that writes into sets, the batch is copied into the only one.
  std::optional<size_t> place(const Batch& batch);
  void copy_batches();
  /// Frees the recordings if the device's memory cannot hold both them and other work.
  void make_room();
  void remember_modes();
  /// What has changed since the first recording, for display: parameters were frozen or unfrozen, layers changed mode,
  /// the optimizer's tensors or numbers, the memory of a parameter or buffer, or the window length; nullopt if nothing.
  std::optional<std::string> out_of_date() const;
  /// The optimizer's numbers that a recording contains: the weight decay of each group, and the momentum if it is not
  /// read from the device.
  template <class Use>
  void each_optimizer_number(Use use) const;
  bool optimizer_numbers_changed() const;
  /// Call once per window. Whether these numbers differed from the previous window's in so many windows in a row that
  /// recordings would be discarded as fast as they are made.
  bool optimizer_numbers_keep_changing();
  /// The name of a parameter or buffer whose memory was replaced since the first recording began.
  std::optional<std::string> replaced_memory() const;
  /// Of each parameter, whether it requires gradients.
  std::vector<bool> which_learn() const;
  std::vector<Tensor> gradients() const;
  void set_gradients(const std::vector<Tensor>& gradients) const;
  bool gradients_are(const std::vector<Tensor>& others) const;
  /// Puts the gradients of a window's first batch into the same memory each time, where the other batches expect them.
  void keep_gradients_in_place();
  bool record(Recording& recording, const Batch& batch, int64_t batch_idx);
  /// Whether the recording is compared with this step, if its recorder can do so: the first two steps must agree, and
  /// code of the host that changes rarely is found at steps 10, 100, 1,000, …, in each epoch, and for other reasons.
  bool compares(const Recording& recording) const;
  /// Steps between which no epoch begins and no evaluation runs are one section.
  int64_t section() const { return run_.counters.epoch + evaluations_; }
  /// Notes reasons to compare the next launches: changes of the module's members, and an evaluation that has run.
  void note_changes();
  /// Whether this step is in the last captured window of its section or of the fit, as far as that is known, and is
  /// compared. If it agrees, and the first step of the next section differs, then no launch was wrong. In a short
  /// section comparisons would take long, so it is compared then only if something is known to change between sections,
  /// at the first section, the tenth, …, and at the end of the fit.
  bool ends_section(const Recording* recording, int64_t batch_idx, const ExpectedEnd& end);
  /// Records the step again. Throws an Error if it differs from a recording, and launches since the last comparison may
  /// have been wrong.
  bool compare(Recording& recording, const Batch& batch, int64_t batch_idx);
  StepOutput record_body(Recording& recording, const Batch& batch, int64_t batch_idx);
  /// Reverts the host's part of a step whose recording failed.
  void undo_step(const std::vector<Tensor>& gradients, int64_t losses);
  std::optional<StepOutput> replay(Recording& recording);
  /// What hooks get of a step. On the CPU these are copies, which may be kept.
  StepOutput output_of(const Recording& recording) const;
  /// Why launches of the recording that was just made would not do what the step does on the host.
  std::optional<std::string> cannot_replay_host_code() const;
  [[noreturn]] void refuse_difference(const Recording& recording, const std::string& what) const;
  /// With several ranks on the CPU, recording a step executes it, with its exchanges.
  bool exchanges_when_recorded() const { return run_.world_size() > 1 && graph_->compares_recordings(); }
  [[noreturn]] void refuse_second_exchange(const std::string& what) const;
  /// The output of a step that was executed while it was recorded, and cannot be replayed.
  StepOutput accept(Recording& recording);
  void look_at(const HostNumbers& numbers, bool last);
  void start_over();
  /// Discards the recordings, since `why`. If they were of little use several times in a row, gives up.
  void record_again(const std::string& why);
  /// Makes the batch's shape the present one. False if there is no room for it.
  bool select_shape(const Batch& batch);
  /// Whether the present shape, which has no recording, gets one.
  bool may_record_shape();
  /// Batches of another kind that come again and again replace the recordings.
  void note_other_kind(const Batch& batch);
  int64_t reserved() const;
  /// Runs the next steps eagerly. `reason` is what a Trainer reports as `not_captured`.
  void end_capture(const std::string& reason, const char* warning, const std::string& message);
  void give_up(const std::string& reason);
  /// For the number named by `changing_`.
  void give_up_for_number(int64_t step);

  RunState& run_;
  Services& services_;
  RecordableStep* optimizer_;
  std::unique_ptr<GraphCapture> graph_;  // owns the stream
  Body body_;
  DevicePrefetcher* prefetcher_ = nullptr;
  std::shared_ptr<InputSets> sets_;
  bool copies_ = false;  // batches are not in the sets and are copied
  bool reported_kept_ = false;
  bool several_shapes_ = false;                 // on the CPU
  std::vector<std::unique_ptr<Shape>> shapes_;  // at least one
  Shape* now_ = nullptr;                        // the shape of the last batch, unless there is no room for it
  BatchKind other_kind_;                        // of the last batches, of another kind than recorded
  int64_t others_ = 0;                          // how many of them have come in a row
  bool recorded_ = false, given_up_ = false, made_room_ = false, reported_shapes_ = false;
  // What a recording depends on besides the batch: which parameters require gradients, which layers are in training
  // mode, the optimizer's tensors, the window length.
  std::vector<std::pair<Tensor, bool>> learning_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> training_;
  struct Held {
    std::string name;
    Tensor tensor, memory;  // `memory` refers to the memory that the recordings use
    bool is_replaced() const;
  };
  std::vector<Held> held_;  // the parameters and buffers
  std::vector<std::optional<double>> optimizer_numbers_;
  std::vector<std::optional<double>> window_numbers_;  // those of the previous window
  int64_t number_changes_ = 0;                         // windows in a row before which they changed
  bool momentum_on_device_ = false;
  int64_t layout_ = 0, accumulation_ = 1;
  std::vector<Tensor> window_gradients_;
  std::optional<NumberChange> changing_;
  HostNumbers numbers_;                  // of the last recording
  std::string stopped_at_;               // the operation at which a recording failed
  std::optional<std::string> executed_;  // why the step of the last recording, which was executed, cannot be replayed
  bool records_again_ = false;           // later steps may be replayed, by new recordings
  WatchedMembers members_;
  std::optional<std::string> member_change_;  // since the last captured step
  int64_t reasons_ = 0;                       // to compare recordings
  bool hooks_between_epochs_;                 // the module has them
  bool members_change_ = false;               // evaluations have changed members
  bool sections_differ_ = false;              // the first step of a section has differed from the one before
  bool changes_members_ = false;              // the last recorded step does
  int64_t evaluations_ = 0, evaluations_seen_ = 0;
  std::string_view waits_;                         // why a batch was not captured that may be the last one; a constant
  int64_t launched_before_ = 0, short_lives_ = 0;  // launches when recordings were last discarded; how often in a row
                                                   // that was soon
  /// What the last eager step before a recording has used.
  struct WarmUp {
    std::vector<bool> learn;
    int64_t layout = 0;
  };
  WarmUp warm_up_;
  int64_t warm_ups_ = 0, windows_ = 0, records_ = 0;
  int64_t pool_bytes_ = 0;      // size of the recordings' pool
  int64_t batches_ = 0;         // batches of the fit so far
  int64_t first_captured_ = 0;  // the global step of the first recording
};

}  // namespace fulgur::detail
