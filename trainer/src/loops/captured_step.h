#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/graph_capture.h"
#include "fulgur/core/recordable_step.h"
#include "fulgur/data/device_prefetcher.h"
#include "run/host_numbers.h"
#include "run/run.h"

namespace fulgur::detail {

/// `cuda_graph: true`: after a few steps as they are, the device's work of a step (forward, backward, clipping,
/// optimizer, adding to logged values) is recorded and launched as one from then on. Batches of another shape are
/// stepped as they are. If a recording is out of date, it begins again with a few steps as they are.
///
/// The loader writes batches into two sets of tensors in turn (InputSets), and there is a recording for each. With one
/// set, a copy would have to wait for the step before it, whose backward reads the batch to the end. With a copy on the
/// device into the recording's own input, a step launches one more copy for each entry, and a batch lies there three
/// times (the one that comes, the one that has come, the input) instead of twice. What two recordings cost is their
/// nodes: activations and gradients lie in one memory pool, since one is never launched while the other is under way.
///
/// With accumulation the first batches of a window, those between and the last are recorded apart: the first makes the
/// gradients, the others add to them, the last steps too, as eager ones do, so that the numbers are the same to the
/// bit.
class CapturedStep {
 public:
  /// `body` is the device's part of a step of automatic optimization: up to the gradients, and for the last batch of a
  /// window up to gradients of none.
  using Body = std::function<StepOutput(const Batch&, int64_t batch_idx, bool last_of_window)>;
  CapturedStep(Run& run, std::unique_ptr<GraphCapture> graph, Body body);
  ~CapturedStep();

  /// The loader of the batches, if it copies them to the device ahead of time; else nullptr.
  void set_prefetcher(DevicePrefetcher* prefetcher);
  /// Whether the batch lies in memory that recordings read, as its loader has written it. They bring it into the run's
  /// memory format themselves.
  bool reads(const Batch& batch) const { return sets_ && sets_->find(batch); }
  /// The step's output if the device was given the recorded step; nothing if the step is to be made as it is. Neither
  /// counts the batch in its window.
  std::optional<StepOutput> step(const Batch& batch, int64_t batch_idx);
  /// For a step that is made as it is, until the returned object goes: one before a recording runs on the stream that
  /// will record. What it logs is looked at.
  std::shared_ptr<void> eager_step(const Batch& batch);

 private:
  struct Recording {
    std::unique_ptr<GraphCapture> graph;
    StepOutput output;  // that it writes
    std::vector<LogStore::Addition> additions;
    // Of all parameters, before a launch and after it.
    std::vector<Tensor> gradients_before, gradients_after;
  };
  /// By the batch's set and its place in the window.
  using Recordings = std::array<std::optional<Recording>, InputSets::kSets * 4>;

  bool first_of_window() const { return run_.window_done == 0; }
  bool last_of_window() const { return run_.window_done + 1 == run_.window_length; }
  /// Whether the loader will write batches like this one into sets from now on.
  bool ask_for_sets(const Batch& batch);
  /// The set that the batch lies in; without a loader that writes into sets, it is copied into the only one.
  std::optional<size_t> place(const Batch& batch);
  void copy_batches();
  void remember_modes();
  /// Whether parameters were frozen or freed, layers put into another mode, the optimizer's tensors replaced, or
  /// windows got another length since the first recording.
  bool out_of_date() const;
  std::vector<Tensor> gradients() const;
  void set_gradients(const std::vector<Tensor>& gradients) const;
  bool gradients_are(const std::vector<Tensor>& others) const;
  /// The first batch of each window leaves its gradients in the same memory, where the others look for them.
  void keep_gradients_in_place();
  bool record(Recording& recording, const Batch& batch, int64_t batch_idx);
  StepOutput record_body(Recording& recording, const Batch& batch, int64_t batch_idx);
  /// The host's part of a step whose recording was broken off.
  void undo_step(const std::vector<Tensor>& gradients, int64_t losses);
  std::optional<StepOutput> replay(Recording& recording);
  void look_at(const HostNumbers& numbers, bool last);
  void start_over();
  /// The next steps are made as they are. What a Trainer reports as `not_captured` is `reason`.
  void end_capture(const std::string& reason, const char* warning, const std::string& message);
  void give_up(const std::string& reason);
  /// For the number that `changing_` names.
  void give_up_for_number(int64_t step);

  Run& run_;
  RecordableStep* optimizer_;
  std::unique_ptr<GraphCapture> graph_;  // whose stream it is
  Body body_;
  DevicePrefetcher* prefetcher_ = nullptr;
  std::shared_ptr<InputSets> sets_;
  bool copies_ = false;  // batches come in memory of their own
  Batch inputs_;         // that they are copied into
  BatchKind kind_;       // of the last batch, before the first recording; then of all that are recorded
  Recordings recordings_;
  bool recorded_ = false, given_up_ = false;
  // What a recording depends on beside the batch: which parameters learn, which layers are in training mode, the
  // optimizer's tensors, the length of a window.
  std::vector<std::pair<Tensor, bool>> learning_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> training_;
  int64_t layout_ = 0, accumulation_ = 1;
  std::vector<Tensor> window_gradients_;
  // What eager steps logged, those in a window and those at its end.
  std::array<std::optional<HostNumbers>, 2> logged_;
  std::optional<NumberChange> changing_;
  HostNumbers numbers_;     // of the last recording
  std::string stopped_at_;  // the operation that a recording stopped at
  int64_t warm_ups_ = 0, windows_ = 0, records_ = 0;
  int64_t batches_ = 0;         // of the fit
  int64_t first_captured_ = 0;  // the global step of the first recording
};

}  // namespace fulgur::detail
